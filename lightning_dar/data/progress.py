"""How far training is, by Lightning's counts of batches: before they are restored, where a run is saved inside a step,
and where it goes on with batches of another size."""

from typing import Any

import lightning as L

from lightning_dar.errors import DataError

EPOCH_PROGRESS = "epoch_loop.batch_progress"  # in the fit loop's state


class Position:
    """The windows and batches trained on since a run's first step, over all passes, devices and resumes.

    The checkpoint that a run goes on from gives both, and Lightning counts the batches since. It restores its count
    last, after the optimizer and the loaders may have been made: until then the checkpoint alone tells.
    """

    def __init__(self) -> None:
        self._windows = self._batches = 0  # at the checkpoint that the run goes on from
        self._read_before = False

    def restore(self, windows: int, batches: int) -> None:
        """Raises DataError where windows were read before: they were those of a run that begins."""
        if self._read_before and windows:
            raise DataError(
                "data: training batches were read before the position of the run that goes on was restored; read them "
                "in on_train_start or later"
            )
        self._windows, self._batches = windows, batches

    def batches(self, trainer: L.Trainer | None) -> int:
        """Batches trained on. Raises DataError before they are restored."""
        if trainer is None:
            return 0
        if _awaits_progress(trainer):
            raise DataError("data: how far training is was asked for before it is restored; ask in on_train_start")
        # Exact wherever a checkpoint is saved: after a step, after validation, at the end of an epoch, on an exception.
        return trainer.fit_loop.epoch_loop.batch_progress.total.processed

    def windows(self, trainer: L.Trainer | None, batch_windows: int) -> int:
        """Windows trained on; `batch_windows` is the size of a batch on all devices together."""
        if trainer is None or _awaits_progress(trainer):
            return self._windows
        self._read_before |= trainer.fit_loop.epoch_progress.total.ready == 0  # a checkpoint may yet be restored
        return self._windows + (self.batches(trainer) - self._batches) * batch_windows


def _awaits_progress(trainer: L.Trainer) -> bool:
    """Whether a checkpoint is being restored, and Lightning's own counts have not been yet."""
    return bool(trainer._checkpoint_connector._loaded_checkpoint) and not trainer.fit_loop.is_resuming


def batches_since_step(trainer: L.Trainer) -> int:
    """Batches whose gradients wait for the others of their optimizer step. No checkpoint holds gradients, so a resumed
    run does these batches again."""
    progress = trainer.fit_loop.epoch_loop.batch_progress.current
    return progress.processed % trainer.accumulate_grad_batches if trainer.fit_loop._should_accumulate() else 0


def leave_out_unfinished_step(fit_loop: dict[str, Any], batches: int) -> None:
    """Puts the progress in a checkpoint back to its last optimizer step."""
    if batches == 0:
        return
    for progress in ("current", "total"):
        counts = fit_loop[EPOCH_PROGRESS][progress]
        done = counts["processed"] - batches
        counts.update(dict.fromkeys(("ready", "started", "processed", "completed"), done))


def resize(trainer: L.Trainer, before: dict[str, Any], now: dict[str, Any]) -> int:
    """Puts the progress in the checkpoint that is being loaded into the batches with which the run goes on: Lightning
    tells by it which batch ends a step, when to validate, and what is left of an epoch.

    Args:
        before: state of `TextData` in that checkpoint.
        now: `batch_windows` and `step_windows` of this run.

    Returns:
        All batches trained on, as so many of this run's.
    """
    fit_loop = trainer._checkpoint_connector._loaded_checkpoint["loops"]["fit_loop"]
    for progress in ("current", "total"):
        counts = fit_loop[EPOCH_PROGRESS][progress]
        shift = _resized(counts["processed"], before, now) - counts["processed"]
        counts.update({name: count + shift for name, count in counts.items()})
    return _resized(before["batches"], before, now)


def _resized(batches: int, before: dict[str, Any], now: dict[str, Any]) -> int:
    """Whole steps of them, wherever anything changes."""
    if "batch_windows" not in before or all(before.get(size) == windows for size, windows in now.items()):
        return batches
    return batches * before["batch_windows"] // now["step_windows"] * (now["step_windows"] // now["batch_windows"])
