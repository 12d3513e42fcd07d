"""Runs never share a folder by accident, whether they start together or one after the other."""

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import fit_args, only_line
from lightning.pytorch.loggers import Logger, TensorBoardLogger

import cli
from lightning_dar.fit.folders import LOCK, _held, _version_folder

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


@pytest.mark.slow
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


SAVING = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"
TOLD = [SAVING, "--trainer.callbacks.dirpath=kept"]


def test_a_told_folder_may_be_there_and_a_checkpoint_in_it_goes_on(fit, run):
    Path("kept").mkdir()
    Path("kept/notes.txt").touch()
    fit(*TOLD, *QUICK)
    (path,) = Path("kept").glob("*.ckpt")
    status, _, err = run("fit", f"--ckpt_path={path}", "--trainer.max_steps=2")
    assert status == 0, err
    assert sorted(path.name for path in Path("kept").glob("*.ckpt")) == ["epoch=0-step=1.ckpt", "epoch=0-step=2.ckpt"]
    assert not list(Path().rglob(LOCK))


def hold(folder: str, ready, done) -> None:
    with _held(Path(folder).resolve()):
        ready.set()
        done.wait(60)


@pytest.mark.parametrize("folder", ["runs/test/version_0/checkpoints", "kept"])
def test_a_folder_that_another_process_is_using_is_left_alone(folder, fit, run, text_folder):
    """Even where both are told to go on: a job that was queued again while it still ran."""
    told = TOLD if folder == "kept" else []
    fit(*told, *QUICK)
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(folder, ready, done))
    other.start()
    assert ready.wait(60)
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
    status, _, err = run(*fit_args(text_folder), *told, LAST, "--trainer.max_steps=2")
    assert status == 2
    assert f"{folder}: another process is training and writes there" in only_line(err)
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()} == before
    done.set()
    other.join()
    fit(*told, LAST, "--trainer.max_steps=2")


def take(folders, start) -> None:
    logger = TensorBoardLogger("runs", name="raced")
    start.wait(60)
    folders.put(str(_version_folder(logger)))


def test_many_that_look_for_the_next_version_at_once_get_one_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = multiprocessing.get_context("fork")
    folders, start = context.Queue(), context.Event()
    processes = [context.Process(target=take, args=(folders, start)) for _ in range(12)]
    for process in processes:
        process.start()
    start.set()
    taken = {folders.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert taken == {f"runs/raced/version_{number}" for number in range(12)}


class Named(Logger):
    """As those that keep a run's id."""

    name, version, save_dir = "project", "mine", "elsewhere"

    def log_metrics(self, metrics, step=None): ...

    def log_hyperparams(self, params, *args, **kwargs): ...


def test_the_folder_of_any_logger_is_one_runs(run, text_folder):
    args = [*without_logger(fit_args(text_folder)), *QUICK, f"--trainer.logger={__name__}.Named"]
    assert run(*args)[0] == 0
    before = Path("elsewhere/project/mine/config.yaml").read_text()
    status, _, err = run(*args, "--data.seed=1")
    assert status == 2
    assert "elsewhere/project/mine/config.yaml: of another run" in only_line(err)
    assert Path("elsewhere/project/mine/config.yaml").read_text() == before


def test_a_folder_that_cannot_be_made_is_named(run, text_folder):
    Path("kept").touch()
    status, _, err = run(*fit_args(text_folder), *TOLD, *QUICK)
    assert status == 1
    assert "kept: cannot be written (" in only_line(err)
