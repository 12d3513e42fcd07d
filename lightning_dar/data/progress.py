"""Lightning's counts of batches where a run is saved inside a step, or goes on with batches of another size."""

from typing import Any

import lightning as L

EPOCH_PROGRESS = "epoch_loop.batch_progress"  # in the fit loop's state


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
