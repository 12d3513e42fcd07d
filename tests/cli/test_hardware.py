"""trainer.accelerator and trainer.devices `auto`, and what becomes of a precision that is meant for GPUs."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from command_line import fit_args
from jsonargparse import Namespace
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_dar.commands import hardware

CHECKPOINT = "runs/test/version_0/checkpoints/last.ckpt"
NOTICE = "no GPU was found, so 32-true is used, on the CPU"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU does")


@pytest.fixture
def fit_config(run, text_folder):
    """fit_config(*args, **trainer): a run whose trainer's settings come from a config; returns its stderr."""

    def fit_with(*args: str, **trainer: str) -> str:
        Path("run.yaml").write_text(yaml.safe_dump({"trainer": trainer}))
        flags = [arg for arg in fit_args(text_folder) if not arg.startswith("--trainer.accelerator")]
        status, _, err = run(*flags, "--config", "run.yaml", *args)
        assert status == 0, err
        return err

    return fit_with


def precision(version: int = 0) -> str:
    return yaml.safe_load(Path(f"runs/test/version_{version}/config.yaml").read_text())["trainer"]["precision"]


def losses(version: int) -> list[float]:
    events = EventAccumulator(f"runs/test/version_{version}").Reload()
    return [event.value for event in events.Scalars("train/loss")]


@without_gpu
def test_auto_without_a_gpu_is_one_process_in_full_precision(fit_config):
    err = fit_config(accelerator="auto", devices="auto", precision="bf16-mixed")
    (line,) = [line for line in err.splitlines() if "trainer.precision" in line]
    assert line.startswith(f"trainer.precision=bf16-mixed: {NOTICE}")
    assert precision() == "32-true"
    assert NOTICE not in fit_config(accelerator="cpu", devices=1, precision="32-true")
    assert losses(0) == losses(1)


@without_gpu
def test_a_precision_of_the_command_line_stays(fit_config):
    assert NOTICE not in fit_config("--trainer.precision=bf16-mixed", accelerator="auto")
    assert precision() == "bf16-mixed"


@without_gpu
def test_validate_takes_the_checkpoints_precision_where_it_is_meant(fit_config, run):
    """Trained in bf16-mixed, as if on a GPU; the perplexity in bf16 is the trained one, in fp32 it is another."""
    fit_config(accelerator="cpu", precision="bf16-mixed")
    perplexities = {}
    for accelerator in ("auto", "cpu"):
        status, out, err = run("validate", "--ckpt_path", CHECKPOINT, f"--trainer.accelerator={accelerator}")
        assert status == 0, err
        assert (NOTICE in err) == (accelerator == "auto")
        perplexities[accelerator] = float(re.search(r"val/perplexity\W+([\d.]+)", out)[1])
    events = EventAccumulator("runs/test/version_0").Reload()
    trained = events.Scalars("val/perplexity")[-1].value
    assert perplexities["cpu"] == pytest.approx(trained, rel=1e-6)
    assert 1e-6 < abs(perplexities["auto"] / trained - 1) < 1e-2


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize(
    ("accelerator", "asked", "args", "on_cpu"),
    [
        ("auto", "bf16-mixed", [], "32-true"),
        ("auto", "16-mixed", ["--trainer.precision_of=x"], "32-true"),
        ("auto", 16, [], "32-true"),
        ("auto", "bf16-true", [], "bf16-true"),
        ("auto", "64-true", [], "64-true"),
        ("auto", None, [], None),
        ("cpu", "bf16-mixed", [], "bf16-mixed"),
        ("auto", "bf16-mixed", ["--trainer.precision", "bf16-mixed"], "bf16-mixed"),
    ],
)
def test_what_becomes_of_a_precision(accelerator, asked, args, on_cpu, on_gpu, monkeypatch, capsys):
    for kind in hardware.OFF_THE_CPU:
        there = on_gpu and kind is hardware.CUDAAccelerator
        monkeypatch.setattr(kind, "is_available", staticmethod(lambda there=there: there))
    trainer = Namespace(accelerator=accelerator, precision=asked)
    hardware.settle_precision(trainer, args)
    assert trainer.precision == (asked if on_gpu else on_cpu)
    assert (NOTICE in capsys.readouterr().err) == (trainer.precision != asked)


@without_gpu
def test_only_the_first_process_says_it(monkeypatch, capsys):
    monkeypatch.setattr(hardware.rank_zero_only, "rank", 1)
    trainer = Namespace(accelerator="auto", precision="bf16-mixed")
    hardware.settle_precision(trainer, [])
    assert trainer.precision == "32-true"
    assert capsys.readouterr().err == ""
