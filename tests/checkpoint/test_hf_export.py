"""A routed model for transformers opens, computes and generates in a process that cannot import this package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import scramble, tiny_config, tiny_model, variant
from transformers.dynamic_module_utils import get_imports

from lightning_dar import load_model
from lightning_dar.checkpoint.convert import Conversion, convert
from lightning_dar.checkpoint.description import describe
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


def test_every_routed_strategy(tmp_path):
    models = []
    for number, case in enumerate(ROUTED):
        name, options = case.values
        model = scramble(tiny_model(name, tiny_config(tie_embeddings=bool(number % 2)), **options))
        write_checkpoint(model, name, options, tmp_path / f"{number}.ckpt")
        convert(Conversion(source=f"{tmp_path}/{number}.ckpt", output=f"{tmp_path}/hf{number}", format="hf"))
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


def test_what_travels_needs_torch_and_transformers_only(tmp_path):
    model = tiny_model("delta-block", num_blocks=2)
    write_checkpoint(model, "delta-block", {"num_blocks": 2}, tmp_path / "x.ckpt")
    convert(Conversion(source=f"{tmp_path}/x.ckpt", output=f"{tmp_path}/hf", format="hf"))
    files = sorted((tmp_path / "hf").glob("*.py"))
    assert {"modeling_lightning_dar.py", "residual_delta_block.py"} <= {file.name for file in files}
    assert "residual_attnres.py" not in {file.name for file in files}, "only the model's own strategy travels"
    for file in files:
        assert "from lightning_dar" not in file.read_text(), file
        others = set(get_imports(file)) - set(sys.stdlib_module_names) - {"torch", "transformers"}
        assert not others, f"{file.name} needs {others}"


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
        return self.times * state

    def write(self, state, y, site):
        return state + y

    def finish(self, state):
        return state
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch, own_registry):
    def write(text):
        (tmp_path / "my_doubled.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        __import__("my_doubled")

    yield write
    sys.modules.pop("my_doubled", None)


def test_a_plugins_strategy_travels_too(plugin, tmp_path, monkeypatch):
    plugin(PLUGIN)
    model = scramble(tiny_model("doubled", times=3.0)).eval()
    write_checkpoint(model, "doubled", {"times": 3.0}, tmp_path / "x.ckpt")
    convert(Conversion(source=f"{tmp_path}/x.ckpt", output=f"{tmp_path}/hf", format="hf"))
    assert "from .residual_base import Residual" in (tmp_path / "hf/my_doubled.py").read_text()
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=True).eval()
    ids = torch.randint(31, (2, 9))
    torch.testing.assert_close(theirs(ids).logits, model(ids), atol=1e-5, rtol=0)


def test_a_plugin_that_cannot_travel_says_so(plugin, tmp_path):
    plugin(PLUGIN.replace("from lightning_dar import", "import lightning_dar\nfrom lightning_dar import"))
    write_checkpoint(tiny_model("doubled"), "doubled", {}, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match="my_doubled has 'import lightning_dar'; write 'from lightning_dar import"):
        convert(Conversion(source=f"{tmp_path}/x.ckpt", output=f"{tmp_path}/hf", format="hf"))
    assert not (tmp_path / "hf").exists()


def test_config_of_a_routed_model(tmp_path):
    write_checkpoint(tiny_model("delta-sublayer"), "delta-sublayer", {}, tmp_path / "x.ckpt")
    convert(Conversion(source=f"{tmp_path}/x.ckpt", output=f"{tmp_path}/hf", format="hf", dtype="bfloat16"))
    config = json.loads((tmp_path / "hf/config.json").read_text())
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_lightning_dar.RoutedForCausalLM"
    assert (config["dtype"], config["num_hidden_layers"], config["vocab_size"]) == ("bfloat16", 4, 31)
