"""Runs never share a folder by accident, whether they start together or one after the other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import fit_args, only_line

import cli

LAST = "--ckpt_path=last"
QUICK = ["--trainer.max_steps=1", "--trainer.num_sanity_val_steps=0", "--trainer.limit_val_batches=1"]


def without_logger(args: list[str]) -> list[str]:
    return [arg for arg in args if ".logger." not in arg]


def together(args: list[str], count: int = 2) -> list[subprocess.CompletedProcess]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(cli.__file__)), *args]
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, **options) for _ in range(count)]
    return [
        subprocess.CompletedProcess(args, process.returncode, *said)
        for process, said in [(process, process.communicate()) for process in started]
    ]


def test_runs_that_start_together_have_a_folder_each(fit, text_folder):
    """The data are there, so that nothing holds either up on the way to its folder."""
    fit(*QUICK)
    done = together([*fit_args(text_folder), *QUICK])
    assert [process.returncode for process in done] == [0, 0], [process.stderr for process in done]
    runs = sorted(Path("runs/test").iterdir())
    assert [run.name for run in runs] == ["version_0", "version_1", "version_2"]
    for run in runs:
        assert (run / "config.yaml").is_file()
        assert (run / "checkpoints/last.ckpt").exists()
        assert len(list(run.glob("events.*"))) == 1


@pytest.mark.parametrize("logger", ["TensorBoardLogger", "CSVLogger"])
def test_a_version_asked_for_by_name_is_not_written_over(run, text_folder, logger):
    told = {"save_dir": "runs", "name": "test", "version": "mine"}
    settings = json.dumps({"class_path": f"lightning.pytorch.loggers.{logger}", "init_args": told})
    args = [*without_logger(fit_args(text_folder)), *QUICK, f"--trainer.logger={settings}"]
    assert run(*args)[0] == 0
    before = {path: path.read_bytes() for path in Path("runs/test/mine").rglob("*") if path.is_file()}
    status, _, err = run(*args)
    assert status == 2
    assert "runs/test/mine: another run has taken this folder" in only_line(err)
    assert {path: path.read_bytes() for path in Path("runs/test/mine").rglob("*") if path.is_file()} == before
    status, _, err = run(*args, LAST, "--trainer.max_steps=2")
    assert status == 0, err


def test_without_a_logger_the_folder_for_checkpoints_is_one_runs(run, text_folder):
    args = [*without_logger(fit_args(text_folder)), "--trainer.logger=false", *QUICK]
    assert run(*args)[0] == 0
    saved = Path("checkpoints/last.ckpt").resolve()
    status, _, err = run(*args)
    assert status == 2
    assert "checkpoints: another run has taken this folder" in only_line(err)
    assert Path("checkpoints/last.ckpt").resolve() == saved
    assert run(*args, LAST, "--trainer.max_steps=2")[0] == 0
    assert run(*args, "--trainer.default_root_dir=other")[0] == 0


def test_a_folder_told_to_model_checkpoint_is_one_runs(fit, run, text_folder):
    saving = "[{class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {dirpath: kept, save_last: true}}]"
    fit(f"--trainer.callbacks={saving}", *QUICK)
    status, _, err = run(*fit_args(text_folder), f"--trainer.callbacks={saving}", *QUICK)
    assert status == 2
    assert "kept: another run has taken this folder" in only_line(err)
    assert [path.name for path in Path("runs/test").iterdir()] == ["version_0"], "what it took is given back"
