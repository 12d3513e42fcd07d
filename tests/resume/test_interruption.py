"""SIGTERM, and the signal that SLURM sends ahead of its time limit: the step is finished, saved, and gone on from."""

import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from runs_to_kill import CHECKPOINTS, SHARDED, Runs, at_hook, send
from states import different

from lightning_dar.checkpoint.load import open_checkpoint

ROUTED = {
    "model__residual__name": "delta-sublayer",
    "trainer__accumulate_grad_batches": 2,
    "trainer__max_steps": 6,
    "trainer__val_check_interval": 8,
}


def interrupted_at(hook: str, count: int, number: int = signal.SIGTERM):
    return partial(at_hook, hook, count, partial(send, number))


def same_as_undisturbed(runs: Runs, undisturbed: Runs) -> None:
    assert different(runs.weights(), undisturbed.weights()) == []
    assert runs.logged() == undisturbed.logged()


def test_sigterm_saves_between_two_steps_and_ends_with_status_0(new_runs):
    undisturbed = new_runs("undisturbed")
    undisturbed.fit(**ROUTED).check()
    runs = new_runs("interrupted")
    # In the first batch of a step of two; then after a step that a validation follows, which is done as well.
    first = runs.fit(**ROUTED, before=interrupted_at("on_train_batch_end", 5)).check()
    assert "interrupted after 3 steps" in first.said
    assert not re.search("Traceback|weights_only", first.said)
    again = runs.fit("--ckpt_path=last", **ROUTED, before=interrupted_at("on_before_optimizer_step", 1))
    assert "interrupted after 4 steps" in again.check().said
    assert torch.load(runs.folder / CHECKPOINTS / "interrupted.ckpt", weights_only=True)["global_step"] == 4
    runs.fit("--ckpt_path=last", **ROUTED).check()
    same_as_undisturbed(runs, undisturbed)
    assert "routing/sharpness" in runs.logged()
    assert not (runs.folder / CHECKPOINTS / "interrupted.ckpt").exists()


@pytest.mark.parametrize(
    "epochs",
    [
        {"trainer__max_epochs": 5},  # the number of steps depends on the loader, which is then made early
        pytest.param({"trainer__max_epochs": 3, "trainer__max_steps": -1}, marks=pytest.mark.slow),
    ],
)
def test_the_windows_of_an_epoch_go_on_with_workers_that_fetch_ahead(epochs, new_runs):
    limits = {"trainer__max_steps": 20, "data__num_workers": 1, **epochs}
    undisturbed, runs = new_runs("undisturbed"), new_runs("interrupted")
    undisturbed.fit(**limits).check()
    first = runs.fit(**limits, before=interrupted_at("on_train_batch_start", 16)).check()  # an epoch has 12
    assert "interrupted after 16 steps" in first.said
    runs.fit("--ckpt_path=last", **limits).check()
    same_as_undisturbed(runs, undisturbed)


def test_epochs_count_once_however_often_they_are_interrupted_at_their_end(new_runs):
    """In the last batch of the first, which no validation follows, and inside the second."""
    limits = {"trainer__max_epochs": 3, "trainer__max_steps": -1, "trainer__val_check_interval": 10}
    undisturbed, runs = new_runs("undisturbed"), new_runs("interrupted")
    undisturbed.fit(**limits).check()
    for hook, count, steps, epochs in (("on_before_optimizer_step", 12, 12, 1), ("on_train_batch_start", 6, 18, 1)):
        done = runs.fit("--ckpt_path=last", **limits, before=interrupted_at(hook, count)).check()
        assert f"interrupted after {steps} steps" in done.said
        loops = torch.load(runs.folder / CHECKPOINTS / "interrupted.ckpt", weights_only=True)["loops"]
        assert loops["fit_loop"]["epoch_progress"]["total"]["processed"] == epochs
    runs.fit("--ckpt_path=last", **limits).check()
    same_as_undisturbed(runs, undisturbed)


def test_a_signal_to_one_of_two_processes_stops_both(new_runs):
    undisturbed, runs = new_runs("undisturbed"), new_runs("interrupted")
    undisturbed.fit(processes=2).check()
    first = runs.fit(processes=2, before={1: interrupted_at("on_train_batch_start", 6)})
    assert first.statuses == [0, 0], first.said
    assert "interrupted after 6 steps" in first.said
    runs.fit("--ckpt_path=last", processes=2).check()
    same_as_undisturbed(runs, undisturbed)


def test_a_signal_during_the_sanity_check_waits_for_the_first_step(new_runs):
    done = new_runs("early").fit(processes=2, before={1: interrupted_at("on_sanity_check_start", 1)}).check()
    assert "interrupted after 1 steps" in done.said


@pytest.mark.slow
def test_the_process_that_launched_the_others_passes_the_signal_on(new_runs):
    done = new_runs("launched").fit_launched(interrupted_at("on_train_batch_start", 6), trainer__max_steps=400).check()
    assert "interrupted after 6 steps" in done.said or "interrupted after 7 steps" in done.said


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_all_processes_leaves_the_workers_at_work(number, new_runs):
    done = new_runs("group").fit(data__num_workers=2, before=partial(signal_to_the_group, number)).check()
    assert "interrupted after 6 steps" in done.said


def signal_to_the_group(number: int) -> None:
    os.setsid()
    at_hook("on_train_batch_start", 6, lambda: os.killpg(0, number))


def test_a_file_and_a_sharded_folder_take_each_others_place(new_runs):
    runs, file = new_runs("changed"), {"trainer__strategy__class_path": "lightning_dar.training.FSDP2"}
    for options, steps in ((SHARDED, 3), (file, 6), (SHARDED, 9)):
        before = {0: interrupted_at("on_train_batch_start", 3)}
        done = runs.fit("--ckpt_path=last", processes=2, **options, before=before).check()
        assert f"interrupted after {steps} steps" in done.said
        path = runs.folder / CHECKPOINTS / "interrupted.ckpt"
        assert path.is_dir() == (options is SHARDED)
        assert open_checkpoint(path).steps == steps


def test_it_saves_where_last_looks(new_runs):
    runs = new_runs("told")
    saving = '{"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"dirpath": "kept"}}'
    runs.fit(f"--trainer.callbacks+={saving}", before=interrupted_at("on_train_batch_start", 6)).check()
    assert (runs.folder / "kept/interrupted.ckpt").exists()
    again = runs.fit(f"--trainer.callbacks+={saving}", "--ckpt_path=last", trainer__max_steps=8).check()
    assert "Restoring states from the checkpoint path at kept/interrupted.ckpt" in again.said
    assert runs.newest().name == "version_0"


def scontrol(folder: Path, job: str) -> None:
    """A command of that name which notes its arguments, and a job to requeue."""
    command = folder / "bin/scontrol"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\necho "$@" >> {folder}/scontrol.txt\n')
    command.chmod(0o755)
    os.environ |= {"PATH": f"{command.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": job}


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_slurms_signal_requeues_the_job_and_sigterm_leaves_that_to_the_system(number, new_runs):
    runs = new_runs("job")
    before = partial(in_a_job, runs.folder, number)
    done = runs.fit(processes=2, before=before).check()
    assert "interrupted after 7 steps" in done.said
    asked = runs.folder / "scontrol.txt"
    if number == signal.SIGUSR1:
        assert asked.read_text() == "requeue 4711\n"
        assert "job 4711 is requeued" in done.said
    else:
        assert not asked.exists()


def in_a_job(folder: Path, number: int) -> None:
    scontrol(folder, "4711")
    at_hook("on_train_batch_end", 6, partial(send, number))


def test_without_scontrol_the_run_is_saved_all_the_same(new_runs):
    runs = new_runs("job")
    done = runs.fit(before=usr1_without_scontrol).check()
    assert "job 4711 is not requeued: scontrol cannot be run" in done.said
    assert (runs.folder / CHECKPOINTS / "interrupted.ckpt").exists()


def test_a_run_that_saves_nothing_is_not_requeued(new_runs):
    runs = new_runs("job")
    done = runs.fit(trainer__enable_checkpointing="false", before=partial(in_a_job, runs.folder, signal.SIGUSR1))
    assert "interrupted after 7 steps, and nothing is saved" in done.check().said
    assert not (runs.folder / "scontrol.txt").exists()


def usr1_without_scontrol() -> None:
    os.environ |= {"PATH": "/nowhere", "SLURM_JOB_ID": "4711"}
    at_hook("on_train_batch_end", 2, partial(send, signal.SIGUSR1))
