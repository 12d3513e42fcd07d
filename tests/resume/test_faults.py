"""What can go wrong in a run: it ends within a minute with the true reason in one line, and nothing saved is lost."""

import contextlib
import os
import signal
from functools import partial

import pytest
import torch
from command_line import only_line
from runs_to_kill import CHECKPOINTS, SHARDED, Runs, at_hook, at_save, limit_files
from states import different

from lightning_dar.run.last import newest_in


def error_of(said: str) -> str:
    return only_line(said[said.index("error:") :])


def goes_on_to_the_end(runs: Runs, **options) -> None:
    undisturbed = Runs(runs.folder / "undisturbed", runs.shards)
    undisturbed.fit(**options).check()
    runs.fit("--ckpt_path=last", **options).check()
    assert different(runs.weights(), undisturbed.weights()) == []


def no_room_for_meta() -> None:
    """The last file of a sharded folder goes to a device that is always full."""
    original = torch.save

    def save(content, file, *args, **kwargs) -> None:
        original(content, "/dev/full" if str(file).endswith("meta.pt") else file, *args, **kwargs)

    torch.save = save


NO_ROOM = {
    "file": (partial(limit_files, 60_000, deadly=False), "File too large"),
    "folder": (partial(limit_files, 60_000, deadly=False), "File too large"),
    "the folder's last file": (no_room_for_meta, "inline_container.cc"),  # torch names no reason,
}


@pytest.mark.parametrize("what", NO_ROOM)
def test_a_full_disk_ends_the_run_with_the_checkpoints_before_it(what, new_runs):
    (no_room, reason), runs, options = NO_ROOM[what], new_runs("full"), {}
    if what != "file":
        options = {"processes": 2, **SHARDED}
    full = runs.fit(**options, before=partial(at_save, 2, no_room))
    assert full.statuses[0] == 1, full.said
    assert full.seconds < 60
    line = full.said[full.said.index("error:") :].splitlines()[0]
    assert "step=8.ckpt cannot be written (" in line
    assert reason in line
    if what != "the folder's last file":  # which the first rank writes alone: the others lose it while they wait
        error_of(full.said)
    assert [path.name for path in (runs.folder / CHECKPOINTS).iterdir() if not path.is_symlink()] == [
        "epoch=0-step=4.ckpt"
    ]
    if what == "file":
        goes_on_to_the_end(runs)


def kill_a_worker() -> None:
    from torch.utils.data import dataloader

    original = dataloader._MultiProcessingDataLoaderIter.__init__

    def dying(self, *args, **kwargs) -> None:
        original(self, *args, **kwargs)
        workers.append(self._workers[0].pid)

    workers: list[int] = []
    dataloader._MultiProcessingDataLoaderIter.__init__ = dying

    def kill() -> None:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):  # some have done their work
                os.kill(pid, signal.SIGKILL)

    at_hook("on_train_batch_end", 6, kill)


def test_a_worker_that_dies_is_reported_and_the_run_goes_on(new_runs):
    runs = new_runs("worker")
    done = runs.fit(data__num_workers=1, before=kill_a_worker)
    assert done.statuses == [1]
    assert "a process that loads data has died" in error_of(done.said)
    goes_on_to_the_end(runs, data__num_workers=1)


def fail() -> None:
    raise ArithmeticError("this is the true reason")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "strategy",
    [pytest.param({"trainer__strategy": "ddp"}, id="ddp", marks=pytest.mark.slow), pytest.param(SHARDED, id="fsdp2")],
)
def test_one_rank_that_raises_stops_the_others(rank, strategy, new_runs):
    runs = new_runs("raising")
    done = runs.fit(processes=2, **strategy, before={rank: partial(at_hook, "on_train_batch_end", 5, fail)})
    assert all(done.statuses), done.said
    assert done.seconds < 60
    assert "this is the true reason" in done.said


def test_a_process_that_raises_ends_those_that_it_launched(new_runs):
    runs = new_runs("launched")
    done = runs.fit_launched(partial(at_hook, "on_train_batch_end", 5, fail), **SHARDED)
    assert done.statuses == [1], done.said
    assert done.seconds < 60
    assert "ArithmeticError: this is the true reason" in done.said
    assert runs.still_running() == []


def test_a_truncated_last_checkpoint_is_named_and_the_one_before_it_offered(new_runs):
    runs = new_runs("truncated")
    runs.fit(trainer__max_steps=8).check()
    last = runs.folder / CHECKPOINTS / "epoch=0-step=8.ckpt"
    last.write_bytes(last.read_bytes()[:-1000])
    for path in ("last", CHECKPOINTS / "last.ckpt", CHECKPOINTS / last.name):
        refused = runs.fit(f"--ckpt_path={path}")
        assert refused.statuses == [1]
        line = error_of(refused.said)
        assert (last.name if path == "last" else str(path)) in line
        assert "the newest whole one there has 4 steps: --ckpt_path" in line
        assert "epoch=0-step=4.ckpt" in line
    last.unlink()
    runs.fit("--ckpt_path=last", trainer__max_steps=8).check()


def test_what_is_half_written_is_never_taken_for_last(new_runs):
    runs = new_runs("half")
    runs.fit(trainer__max_steps=8).check()
    folder = runs.folder / CHECKPOINTS
    (folder / ".epoch=0-step=12.ckpt.partial").write_bytes(b"half of it")
    assert newest_in(folder).path.name == "epoch=0-step=8.ckpt"


def poison(*batches: int) -> None:
    """Makes the loss of some batches not a number."""
    from lightning_dar.training import LanguageModel

    original = LanguageModel._loss

    def loss(self, batch):
        total, tokens = original(self, batch)
        if self.training and self.trainer.fit_loop.epoch_loop.batch_progress.total.ready in batches:
            total = total * float("nan")
        return total, tokens

    LanguageModel._loss = loss


def test_a_loss_that_is_not_finite_ends_the_run_before_it_spoils_the_weights(new_runs):
    runs = new_runs("nan")
    stopped = runs.fit(before=partial(poison, 7))
    assert stopped.statuses == [1]
    line = error_of(stopped.said)
    assert "step 7: the loss is nan, in batch " in line
    assert "the last good checkpoint is " in line
    assert "epoch=0-step=4.ckpt (4 steps)" in line
    goes_on_to_the_end(runs)


def test_by_option_such_steps_are_left_out_counted_and_bounded(new_runs):
    options = {"processes": 2, "model__non_finite": "skip"}
    runs = new_runs("skipping")
    done = runs.fit(**options, before={1: partial(poison, 7, 9)}).check()
    assert "step 7: rank 1: the loss is nan" in done.said
    assert "left out, 2 of at most 10" in done.said
    assert runs.logged()["train/skipped_steps"] == [(6, 1.0), (8, 2.0)]
    assert all(tensor.isfinite().all() for tensor in runs.weights().values())
    moved = torch.load(runs.folder / CHECKPOINTS / "last.ckpt", weights_only=True)["optimizer_states"][0]["state"]
    assert {int(state["step"]) for state in moved.values()} == {14}

    bounded = new_runs("bounded").fit(
        model__non_finite="skip", model__max_skipped_steps=1, before=partial(poison, 7, 9)
    )
    assert bounded.statuses == [1]
    assert "step 9" in error_of(bounded.said)
    assert "1 steps were left out before it (model.max_skipped_steps)" in error_of(bounded.said)
