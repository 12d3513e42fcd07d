"""trainer.accelerator and trainer.devices `auto`, what becomes of a precision that is meant for GPUs, and a trainer
that asks for other processes than torchrun has started."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from command_line import fit_args, only_line
from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_dar.errors import UsageError
from lightning_dar.fit import checks as hardware

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
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    trainer = Namespace(accelerator="auto", precision="bf16-mixed")
    hardware.settle_precision(trainer, [])
    assert trainer.precision == "32-true"
    assert capsys.readouterr().err == ""


@pytest.fixture
def torchrun(monkeypatch):
    """What torchrun tells each of four processes."""
    for name, value in (("TORCHELASTIC_RUN_ID", "test"), ("WORLD_SIZE", "4"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)


def test_torchrun_and_the_trainer_must_agree(torchrun, run, text_folder):
    """Without the check, Lightning would take one device for a run of one process: four runs in one folder."""
    status, _, err = run(*fit_args(text_folder), "--trainer.devices=1")
    assert status == 2
    line = only_line(err)
    assert "trainer.devices=1, trainer.num_nodes=1: 1 process(es) asked for, torchrun has started 4" in line
    assert not Path("runs").exists()


@pytest.mark.parametrize(("devices", "num_nodes"), [(2, 2), ("4", 1), ([0, 1], 2), ("0,3", 2), ("auto", 4), (-1, 4)])
def test_they_agree(devices, num_nodes, torchrun):
    hardware.check_launch(Namespace(accelerator="cpu", devices=devices, num_nodes=num_nodes))


@pytest.mark.parametrize(("devices", "num_nodes"), [(4, 2), ([0, 1], 1), ("0,3", 1), ("auto", 1)])
def test_they_do_not(devices, num_nodes, torchrun):
    with pytest.raises(UsageError, match="torchrun has started 4"):
        hardware.check_launch(Namespace(accelerator="cpu", devices=devices, num_nodes=num_nodes))
