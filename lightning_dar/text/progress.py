"""How far training is, by Lightning's counts of batches: before they are restored, where a run is saved inside a step,
and where it goes on with batches of another size."""

from typing import Any

import lightning as L

from lightning_dar.errors import DataError

BATCHES, EPOCHS, STATE = (
    "epoch_loop.batch_progress",
    "epoch_progress",
    "epoch_loop.state_dict",
)  # in the fit loop's state
STEPPED = "_batches_that_stepped"  # in STATE


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


def leave_out_unfinished_step(trainer: L.Trainer, batches: int) -> None:
    """Puts the progress in the checkpoint that is being loaded back to its last step, after so many batches."""
    fit_loop = _fit_loop(trainer)
    unfinished = fit_loop[BATCHES]["total"]["processed"] - batches
    if unfinished:
        for progress in ("current", "total"):
            _set(fit_loop, progress, fit_loop[BATCHES][progress]["processed"] - unfinished)
        fit_loop[STATE][STEPPED] -= 1


def settle_epoch(trainer: L.Trainer) -> None:
    """Has the run go on with the next batch where the checkpoint that is being loaded was saved at the end of an epoch.

    Lightning (seen with 2.6) reads what such a checkpoint says of the epoch in several ways, by the hook that saved it
    and by whether the run is limited by steps: it would give an epoch one batch, or none, or count an epoch twice, now
    or at the next resume. Here an epoch that has had its last batch is over, and one that was cut short goes on.
    """
    fit_loop = _fit_loop(trainer)
    batches, epochs = fit_loop[BATCHES], fit_loop[EPOCHS]["total"]
    in_its_hook = batches["total"]["completed"] < batches["total"]["processed"]
    between_epochs = epochs["processed"] == epochs["started"] > 0
    if not between_epochs and not (in_its_hook and batches["is_last_batch"]):
        return
    done = epochs_done(fit_loop)
    over = done == epochs["started"]
    if over:
        batches["current"]["processed"] = 0
        batches["is_last_batch"] = False
    for progress in ("current", "total"):
        fit_loop[EPOCHS][progress].update(ready=done + 1, started=done + (not over), processed=done, completed=done)
        _set(fit_loop, progress, batches[progress]["processed"])
    fit_loop[STATE][STEPPED] -= not in_its_hook


def _set(fit_loop: dict[str, Any], progress: str, batches: int) -> None:
    """Sets the counts as the hook at the end of the last of so many batches saves them: Lightning counts its step as it
    restarts."""
    counts = dict.fromkeys(("ready", "started", "processed"), batches)
    fit_loop[BATCHES][progress].update(counts, completed=batches - 1)


def epochs_done(fit_loop: dict[str, Any]) -> int:
    """Epochs that have had their last batch, by the state of Lightning's fit loop in a checkpoint."""
    epochs, batches = fit_loop[EPOCHS]["total"], fit_loop[BATCHES]
    if epochs["processed"] < epochs["started"]:
        return epochs["processed"] + batches["is_last_batch"]
    return epochs["started"] - (batches["current"]["processed"] > 0 and not batches["is_last_batch"])


def resize(trainer: L.Trainer, before: dict[str, Any], now: dict[str, Any]) -> int:
    """Puts the progress in the checkpoint that is being loaded into the batches with which the run goes on: Lightning
    tells by it which batch ends a step, when to validate, and what is left of an epoch.

    Args:
        before: state of `TextData` in that checkpoint.
        now: `batch_windows` and `step_windows` of this run.

    Returns:
        All batches trained on, as so many of this run's.
    """
    fit_loop = _fit_loop(trainer)
    for progress in ("current", "total"):
        counts = fit_loop[BATCHES][progress]
        shift = _resized(counts["processed"], before, now) - counts["processed"]
        counts.update({name: count + shift for name, count in counts.items()})
    return _resized(before["batches"], before, now)


def _fit_loop(trainer: L.Trainer) -> dict[str, Any]:
    """The state of Lightning's fit loop in the checkpoint that is being loaded."""
    return trainer._checkpoint_connector._loaded_checkpoint["loops"]["fit_loop"]


def _resized(batches: int, before: dict[str, Any], now: dict[str, Any]) -> int:
    """Whole steps of them, wherever anything changes."""
    if "batch_windows" not in before or all(before.get(size) == windows for size, windows in now.items()):
        return batches
    return batches * before["batch_windows"] // now["step_windows"] * (now["step_windows"] // now["batch_windows"])
