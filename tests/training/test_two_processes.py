"""Two processes over gloo train the model that one process trains on the same global batch."""

import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from command_line import fit_args

import cli
from lightning_dar import load_model

ROOT = Path(__file__).parents[2]
STRATEGIES = {
    "ddp": ["--trainer.strategy=ddp"],
    "fsdp": ["--trainer.strategy.class_path=lightning_dar.training.FSDP"],
    "fsdp2": [
        "--trainer.strategy.class_path=lightning_dar.training.FSDP2",
        "--trainer.accumulate_grad_batches=2",
        "--data.batch_size=2",
        "--trainer.val_check_interval=4",
        "--model.activation_checkpointing=full",
    ],
}


LAST = "runs/test/version_0/checkpoints/last.ckpt"


def fit(folder: Path, *args: str) -> Path:
    """Fits in this process and returns the checkpoint."""
    folder.mkdir()
    with chdir(folder):
        cli.main([*fit_args(folder.parent / "text"), *args])
    return folder / LAST


def fit_in_two(folder: Path, *args: str) -> Path:
    """Fits in processes of its own and returns the checkpoint."""
    folder.mkdir()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "cli.py"), *fit_args(folder.parent / "text"), *args]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / LAST


@pytest.fixture(scope="module")
def folder(tmp_path_factory, text_folder) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    (folder / "text").symlink_to(text_folder)
    return folder


@pytest.fixture(scope="module")
def alone(folder) -> Path:
    return fit(folder / "alone", "--data.batch_size=8", "--trainer.gradient_clip_val=0.5")


@pytest.mark.parametrize(
    "strategy", [pytest.param("ddp", marks=pytest.mark.slow), pytest.param("fsdp", marks=pytest.mark.slow), "fsdp2"]
)
def test_weights_and_metrics_agree_with_one_process(strategy, alone, folder):
    two = ["--data.batch_size=4", "--trainer.devices=2", "--trainer.gradient_clip_val=0.5", *STRATEGIES[strategy]]
    checkpoint = fit_in_two(folder / strategy, *two)
    expected, weights = load_model(alone).state_dict(), load_model(checkpoint).state_dict()
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_accumulation_over_two_batches_agrees_with_one_batch_twice_as_large(alone, folder):
    args = ["--data.batch_size=4", "--trainer.accumulate_grad_batches=2", "--trainer.gradient_clip_val=0.5"]
    checkpoint = fit(folder / "accumulated", *args, "--trainer.val_check_interval=4")
    expected, weights = load_model(alone).state_dict(), load_model(checkpoint).state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-5)
