"""The package as `pip install .` leaves it: a command of its own, with configs and callbacks, in an empty folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = ["--model.hidden_size=32", "--model.num_layers=2", "--model.num_heads=2", "--model.intermediate_size=48"]
QUICK = ["--data.tokenizer=bytes", "--data.seq_len=32", "--trainer.max_steps=2", "--trainer.val_check_interval=2"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A new environment that has the wheel, and everything else from the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", folder]
    subprocess.run([*wheel, _copy(folder)], check=True)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv/bin/python"
    site = Path(
        subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
    )
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--quiet"]
    subprocess.run([*install, *folder.glob("*.whl")], check=True)
    return folder / "venv"


def _copy(folder: Path) -> Path:
    """The files that git knows: setuptools builds inside the folder."""
    files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    for name in files:
        if name.startswith(("lightning_dar/", "configs/")) or "/" not in name:
            target = folder / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    return folder / "source"


def run(environment: Path, cwd: Path, *args: str) -> subprocess.CompletedProcess:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [environment / "bin/lightning-dar", *args]
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)


def test_it_trains_validates_and_plans_in_an_empty_folder(environment, text_folder, tmp_path):
    settings = ["--config=configs/quickstart.yaml", f"--data.source={text_folder}", *SMALL, *QUICK]
    fit = run(environment, tmp_path, "fit", *settings)
    assert fit.returncode == 0, fit.stderr
    (last,) = tmp_path.glob("runs/*/version_0/checkpoints/last.ckpt")
    validate = run(environment, tmp_path, "validate", "--ckpt_path", str(last))
    assert validate.returncode == 0 and "val/loss" in validate.stdout, validate.stderr
    plan = run(environment, tmp_path, "plan", "--config=configs/delta_1b.yaml", "--gpus=8", "--gpu=h100")
    assert plan.returncode == 0, plan.stderr


def test_a_config_that_is_nowhere_is_named(environment, tmp_path):
    fit = run(environment, tmp_path, "fit", "--config=configs/none.yaml")
    assert fit.returncode == 2 and "--config configs/none.yaml: cannot be read" in fit.stderr
