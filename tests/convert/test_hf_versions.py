"""Exported folders under the releases of transformers that they are for, in environments that share torch."""

import subprocess
import sys
from importlib.metadata import distributions

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_hf_export import write_checkpoint, write_plugin
from tiny import scramble, tiny_config, tiny_model

from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.model.generate import generate

pytestmark = pytest.mark.slow
FOLDERS = {  # a/model and b/model have the same base name
    "standard/model": ("standard", {}),
    "a/model": ("delta-sublayer", {"gate": "alpha", "null_source": True}),
    "b/model": ("cumulative-additive", {}),
    "checkpoint-1.5 b": ("delta-block", {"num_blocks": 2}),
    "attnres": ("attnres", {"num_blocks": 2}),
    "plugin/model": ("doubled", {"times": 3.0}),
}
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
sys.modules["lightning_dar"] = sys.modules["my_doubled"] = None
import torch, transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

ids = load_file("ids")["ids"]
results, models = {}, {}
for name in sys.argv[3:]:
    assert AutoConfig.from_pretrained(name, trust_remote_code=True).hidden_size == 16
    models[name] = AutoModelForCausalLM.from_pretrained(name, trust_remote_code=True).eval()
for name, model in models.items():  # after all of them are there
    with torch.no_grad():
        results[f"{name} logits"] = model(ids).logits
    for use_cache in (True, False):
        options = {"max_new_tokens": 12, "do_sample": False, "use_cache": use_cache, "pad_token_id": 0}
        results[f"{name} {use_cache}"] = model.generate(ids[:1, :5], attention_mask=torch.ones(1, 5), **options)
    model.save_pretrained(f"{sys.argv[2]}/{name}")
    again = AutoModelForCausalLM.from_pretrained(f"{sys.argv[2]}/{name}", trust_remote_code=True).eval()
    with torch.no_grad():
        results[f"{name} again"] = again(ids).logits
save_file(results, "results")
print(transformers.__version__)
"""


def pip(folder, *wanted):
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"pip cannot install {' '.join(wanted)}: {done.stderr.strip().splitlines()[-1]}")


@pytest.fixture
def environment(tmp_path):
    """Makes a folder with a release of transformers, and the releases that it needs of what is released with it."""

    def make(release):
        folder = tmp_path / "site"
        pip(folder, f"transformers{release}")
        (found,) = distributions(name="transformers", path=[str(folder)])
        needed = [line for line in found.requires if line.startswith(("huggingface", "tokenizers", "typer"))]
        pip(folder, *(line for line in needed if ";" not in line))
        return folder

    return make


@pytest.fixture
def work(tmp_path, own_registry, monkeypatch):
    return tmp_path


def run_under(folder, tmp_path, names):
    env = {"HF_MODULES_CACHE": str(tmp_path / "modules"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-I", "-c", PROGRAM, str(folder), str(tmp_path / "again"), *names]
    return subprocess.run(command, env={**env, "PATH": ""}, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.parametrize("release", ["==4.57.*", "==5.0.*", ""], ids=["4.57", "5.0", "newest"])
def test_folders_open_and_compute_the_same(release, environment, tmp_path, own_registry, monkeypatch):
    site = environment(release)
    write_plugin(tmp_path, monkeypatch)
    models = {}
    for name, (residual, options) in FOLDERS.items():
        config = tiny_config(tie_embeddings=residual != "attnres")
        models[name] = model = scramble(tiny_model(residual, config, **options)).eval()
        write_checkpoint(model, residual, options, tmp_path / "x.ckpt")
        convert(Conversion(source=f"{tmp_path}/x.ckpt", output=f"{tmp_path}/{name}", format="hf", verify=False))
    ids = torch.randint(31, (2, 9))
    save_file({"ids": ids}, tmp_path / "ids")
    done = run_under(site, tmp_path, FOLDERS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(release.strip("=*"))
    results = load_file(tmp_path / "results")
    for name, model in models.items():
        with torch.no_grad():
            logits = model(ids)
        for kind in ("logits", "again"):
            torch.testing.assert_close(results[f"{name} {kind}"], logits, atol=1e-5, rtol=0, msg=f"{name} {kind}")
        for use_cache in (True, False):
            text = generate(model, ids[:1, :5], 12, temperature=0)
            assert torch.equal(results[f"{name} {use_cache}"], text), f"{name}, use_cache={use_cache}"


def test_an_older_release_is_told_which_it_needs(environment, tmp_path):
    site = environment("==4.56.*")
    write_checkpoint(tiny_model("delta-sublayer"), "delta-sublayer", {}, tmp_path / "x.ckpt")
    convert(Conversion(source=f"{tmp_path}/x.ckpt", output=f"{tmp_path}/hf", format="hf", verify=False))
    save_file({"ids": torch.zeros(2, 9, dtype=torch.long)}, tmp_path / "ids")
    done = run_under(site, tmp_path, ["hf"])
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: this model needs transformers 4.57 or later; 4.56"), done.stderr
