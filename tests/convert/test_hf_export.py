"""A routed model for transformers opens, computes and generates in a process that cannot import this package."""

import importlib
import json
import os
import pickle
import re
import subprocess
import sys
from copy import deepcopy
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import indent

import pytest
import torch
from hf_models import exported, opened
from safetensors.torch import load_file, save_file
from tiny import scramble, tiny_config, tiny_model, variant
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.dynamic_module_utils import get_imports, get_relative_imports

from lightning_dar import load_model
from lightning_dar.checkpoint.description import FORMAT, describe
from lightning_dar.convert import hf_verify
from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.errors import DataError, UsageError
from lightning_dar.model.generate import generate
from lightning_dar.residual import ResidualConfig, available_residuals

VARIANTS = [*map(variant, available_residuals()), variant("delta-sublayer", gate="alpha", null_source=True)]
ROUTED = [case for case in VARIANTS if case.values[0] != "standard"]

OPEN_AND_RUN = """
import sys, torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

try:
    import lightning_dar
    sys.exit("the package can be imported: this would prove nothing")
except ImportError:
    pass
results = {}
for number, folder in enumerate(sys.argv[2:]):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    given = load_file(sys.argv[1])
    with torch.no_grad():
        out = model(given["ids"], labels=given["ids"])
        prompt = given["ids"][:1, :5]
        padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), prompt], dim=1)
        mask = torch.tensor([[0] * 3 + [1] * 5])
        options = {"max_new_tokens": 24, "do_sample": False}
        results |= {
            f"{number}.logits": out.logits,
            f"{number}.loss": out.loss,
            f"{number}.cached": model.generate(prompt, **options),
            f"{number}.uncached": model.generate(prompt, use_cache=False, **options),
            f"{number}.padded": model.generate(padded, attention_mask=mask, **options)[:, 3:].contiguous(),
        }
    model.save_pretrained(folder + "_again")
save_file(results, sys.argv[1] + ".results")
"""


def write_checkpoint(model, name, options, path: Path) -> None:
    residual = ResidualConfig(name=name, options=options)
    description = describe(model.config, model.residual, residual)
    weights = {f"model.{key}": tensor for key, tensor in model.state_dict().items()}
    torch.save({"lightning_dar": description, "state_dict": weights}, path)


def make(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def test_every_routed_strategy(tmp_path):
    models = []
    for number, case in enumerate(ROUTED):
        name, options = case.values
        model = scramble(tiny_model(name, tiny_config(tie_embeddings=bool(number % 2)), **options))
        write_checkpoint(model, name, options, tmp_path / f"{number}.ckpt")
        source, output = f"{tmp_path}/{number}.ckpt", f"{tmp_path}/hf{number}"
        convert(Conversion(source=source, output=output, format="hf", verify=False))
        models.append(model.eval())
    ids = torch.randint(31, (2, 9))
    save_file({"ids": ids}, tmp_path / "given")
    env = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    folders = [f"{tmp_path}/hf{number}" for number in range(len(models))]
    command = [sys.executable, "-I", "-c", OPEN_AND_RUN, str(tmp_path / "given"), *folders]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = load_file(tmp_path / "given.results")
    for number, model in enumerate(models):
        with torch.no_grad():
            logits = model(ids)
        torch.testing.assert_close(results[f"{number}.logits"], logits, atol=1e-5, rtol=0)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        torch.testing.assert_close(results[f"{number}.loss"], loss)
        text = generate(model, ids[:1, :5], 24, temperature=0)
        for kind in ("cached", "uncached", "padded"):
            assert torch.equal(results[f"{number}.{kind}"], text), kind
        for folder in (folders[number], folders[number] + "_again"):  # ours open in this package too
            assert torch.equal(load_model(folder)(ids), model(ids))


def test_one_file_travels_and_needs_torch_and_transformers_only(tmp_path):
    exported(tmp_path / "hf", "delta-block", num_blocks=2)
    (file,) = (tmp_path / "hf").glob("*.py")
    assert re.fullmatch(r"modeling_lightning_dar_[0-9a-f]{12}\.py", file.name)
    text = file.read_text()
    assert "class DeltaBlock(" in text
    assert "class AttnRes(" not in text, "only the model's own strategy travels"
    assert not set(get_imports(file)) - set(sys.stdlib_module_names) - {"torch", "transformers"}
    assert not get_relative_imports(file)
    map_ = json.loads((tmp_path / "hf/config.json").read_text())["auto_map"]
    assert map_ == {
        "AutoConfig": f"{file.stem}.RoutedConfig",
        "AutoModelForCausalLM": f"{file.stem}.RoutedForCausalLM",
    }


def test_config_of_a_routed_model(tmp_path):
    write_checkpoint(tiny_model("delta-sublayer"), "delta-sublayer", {}, tmp_path / "x.ckpt")
    source, output = f"{tmp_path}/x.ckpt", f"{tmp_path}/hf"
    convert(Conversion(source=source, output=output, format="hf", dtype="bfloat16", verify=False))
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert (config["dtype"], config["num_hidden_layers"], config["vocab_size"]) == ("bfloat16", 4, 31)


PLUGIN = """
from lightning_dar import Residual, register_residual


@register_residual("doubled")
class Doubled(Residual):
    def __init__(self, shape, *, times: float = 2.0):
        super().__init__(shape)
        self.times = times

    def start(self, embeddings):
        return embeddings

    def read(self, state, site):
        return state + self.times

    def write(self, state, y, site):
        return state + y

    def finish(self, state):
        return state
"""


def write_plugin(folder: Path, monkeypatch, text=PLUGIN, **others):
    """An imported plugin `my_doubled`, and modules beside it, all forgotten after the test."""
    for path, content in {"my_doubled": text, **others}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{path}.py").write_text(content)
        name = path.removesuffix("/__init__").replace("/", ".")
        monkeypatch.setitem(sys.modules, name, None)  # so that the import below is undone
        del sys.modules[name]
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module("my_doubled")


@pytest.fixture
def modules_cache(tmp_path, monkeypatch):
    """transformers copies code into a folder of the test's own."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]


def test_folders_of_one_name_stay_what_they_are(tmp_path, modules_cache, own_registry, monkeypatch):
    """Strategies, options, plugins and versions of a plugin, of equal base names, in one process."""
    ids = torch.randint(31, (2, 9))
    models = {
        "a/model": exported(make(tmp_path / "a/model"), "delta-sublayer"),
        "b/model": exported(make(tmp_path / "b/model"), "cumulative-additive"),
        "c/model": exported(make(tmp_path / "c/model"), "delta-sublayer", gate="alpha", null_source=True),
    }
    write_plugin(tmp_path, monkeypatch)
    models["d/model"] = exported(make(tmp_path / "d/model"), "doubled", times=0.5)
    write_plugin(tmp_path / "newer", monkeypatch, PLUGIN.replace("+ self.times", "- self.times"))
    models["e/model"] = exported(make(tmp_path / "e/model"), "doubled", times=0.5)
    theirs = {name: opened(tmp_path / name) for name in models}
    for name, model in theirs.items():
        model.save_pretrained(tmp_path / "again" / name)
    theirs |= {f"again/{name}": opened(tmp_path / "again" / name) for name in reversed(models)}
    for name, model in models.items():
        for folder in (name, f"again/{name}"):
            copy = deepcopy(theirs[folder])
            torch.testing.assert_close(copy(ids).logits, model(ids), atol=1e-5, rtol=0, msg=folder)
            config = pickle.loads(pickle.dumps(AutoConfig.from_pretrained(tmp_path / folder, trust_remote_code=True)))
            built = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
            assert type(built) is type(theirs[folder]), "AutoConfig alone names the same code"
    assert torch.equal(theirs["d/model"].state_dict()["lm_head.weight"], models["d/model"].embed.weight)


def test_a_model_refuses_the_config_of_another(tmp_path, modules_cache):
    exported(make(tmp_path / "a/model"), "delta-sublayer")
    exported(make(tmp_path / "b/model"), "cumulative-additive")
    first, config = opened(tmp_path / "a/model"), json.loads((tmp_path / "a/model/config.json").read_text())

    def refusal(change=lambda description: None, folder="a"):
        config = json.loads((tmp_path / folder / "model/config.json").read_text())
        change(config["lightning_dar"])
        with pytest.raises(ValueError) as caught:
            type(first)(type(first.config)(**config))
        return str(caught.value)

    assert "asks for residual strategy 'cumulative-additive', this code is of 'delta-sublayer'" in refusal(folder="b")
    with pytest.raises(ValueError, match="asks for residual strategy 'cumulative-additive'"):
        type(first).from_pretrained(tmp_path / "b/model")
    assert f"has format 9, this code reads format {FORMAT}" in refusal(lambda one: one.update(format=9))
    other = refusal(lambda one: one.update(code="0123456789ab"))
    assert "belongs to other code of residual strategy 'delta-sublayer' (0123456789ab, this is " in other
    assert config["lightning_dar"]["code"] in other
    wrong = refusal(lambda one: one["residual"]["options"].update(num_blocks=2))
    assert "gives residual strategy 'delta-sublayer' options that it does not have: num_blocks; open its" in wrong


LAB = {
    "my_doubled": """
from lab import build, Half as Halved
import lightning_dar
import errors
from lightning_dar import register_residual

Shape = build("mine")


@register_residual("doubled")
class Doubled(Halved):
    def __init__(self, shape, *, times: float = 2.0):
        super().__init__(shape)
        self.times = times

    def read(self, state, site):
        from lab.numbers import shifted

        return shifted(state, errors.UsageError * self.times)


assert issubclass(Doubled, lightning_dar.Residual) and Shape == "mine1"
""",
    "errors": "UsageError = 0.5",
    "lab/__init__": "from .parts import Half\nCALLS = 0\n\n\ndef build(name):\n    global CALLS\n    CALLS += 1\n"
    '    return f"{name}{CALLS}"\n',
    "lab/parts": PLUGIN.replace("class Doubled", "class Half").replace('@register_residual("doubled")\n', ""),
    "lab/numbers": "import numpy\n\n\ndef shifted(x, by):\n    return x + float(numpy.float32(by))\n",
}


@pytest.mark.opens_elsewhere
def test_a_plugins_own_modules_travel_and_are_verified_without_them(tmp_path, own_registry, monkeypatch, capsys):
    write_plugin(tmp_path, monkeypatch, LAB["my_doubled"], **{k: v for k, v in LAB.items() if k != "my_doubled"})
    model = scramble(tiny_model("doubled", times=3.0)).eval()
    write_checkpoint(model, "doubled", {"times": 3.0}, tmp_path / "x.ckpt")
    lines = convert(Conversion(source=f"{tmp_path}/x.ckpt", output=f"{tmp_path}/hf", format="hf"))
    opened_elsewhere = f"verified: opened with transformers {version('transformers')}, in a process of its own without "
    assert any(line.startswith(opened_elsewhere) for line in lines)
    assert "its code needs numpy besides torch and transformers" in lines


@pytest.mark.opens_elsewhere
def test_what_a_plugin_takes_from_this_process_is_found(tmp_path, own_registry, monkeypatch):
    """Values set while the program ran, and files beside it, are not where the folder is opened."""
    text = PLUGIN.replace("@register", "SHIFT = 2.0\n\n@register").replace("+ self.times", "+ SHIFT")
    write_plugin(tmp_path, monkeypatch, text).SHIFT = 3.0
    write_checkpoint(scramble(tiny_model("doubled")), "doubled", {}, tmp_path / "x.ckpt")
    asked = Conversion(source=f"{tmp_path}/x.ckpt", output=f"{tmp_path}/hf", format="hf")
    with pytest.raises(DataError, match=r"verification failed: opened with .*, the folder's logits differ by"):
        convert(asked)
    assert not (tmp_path / "hf").exists()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shift.txt").write_text("2.0")
    write_plugin(tmp_path, monkeypatch, text.replace("SHIFT = 2.0", "SHIFT = float(open('shift.txt').read())"))
    with pytest.raises(DataError, match="does not open with transformers .*: FileNotFoundError.*'shift.txt'"):
        convert(asked)


def test_a_strategy_made_in_a_function_is_refused(tmp_path, own_registry, monkeypatch):
    imports, strategy = PLUGIN.split("\n\n\n")
    write_plugin(tmp_path, monkeypatch, f"{imports}\n\n\ndef make():\n{indent(strategy, '    ')}\n\nmake()")
    write_checkpoint(tiny_model("doubled"), "doubled", {}, tmp_path / "x.ckpt")
    with pytest.raises(UsageError, match=r"'doubled' \(my_doubled.make.<locals>.Doubled\) is made inside a function"):
        convert(Conversion(source=f"{tmp_path}/x.ckpt", output=f"{tmp_path}/hf", format="hf"))
    assert not (tmp_path / "hf").exists()


@pytest.mark.opens_elsewhere
@pytest.mark.parametrize(
    "installed, says",
    [
        (None, "not opened with transformers: it is not installed"),
        ("4.49.0", "not opened with transformers: 4.49.0 is installed, 4.57 is the first release that it is for"),
    ],
)
def test_what_was_not_opened_is_said(installed, says, tmp_path, monkeypatch):
    def version(name):
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(hf_verify, "version", version)
    write_checkpoint(tiny_model("delta-sublayer"), "delta-sublayer", {}, tmp_path / "x.ckpt")
    lines = convert(Conversion(source=f"{tmp_path}/x.ckpt", output=f"{tmp_path}/hf", format="hf"))
    assert says in lines
    assert not any("opened" in line and "verified" in line for line in lines)
