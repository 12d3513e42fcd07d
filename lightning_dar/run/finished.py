"""What a run leaves beside its checkpoints when it has ended by itself: a later `--ckpt_path last` has nothing to do.

A run that a signal, Ctrl-C or an error has ended leaves nothing, and goes on.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.errors import DataError
from lightning_dar.run.saved import newest_in, steps_of
from lightning_dar.text.progress import epochs_done

NAME = "finished.json"
DEFAULT_EPOCHS = 1000  # Lightning's, where no limit is given
LIMITS = ("max_steps", "max_epochs", "max_time", "min_steps", "min_epochs", "limit_train_batches", "callbacks")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of a run.

    Attributes:
        steps: optimizer steps done.
        saved: those in the newest checkpoint there. Where that one is gone, what is left goes on.
        reason: what ended it, in words: "all 4 steps", "EarlyStopping".
        asked: the trainer's settings that decide when a run ends. Others make it go on.
    """

    steps: int
    saved: int
    reason: str
    asked: dict[str, Any]


def asked_of(trainer: Namespace) -> dict[str, Any]:
    """`Finished.asked` for the trainer's section of a config, in types that JSON has."""
    kept = {key: trainer.get(key) for key in LIMITS}
    return json.loads(
        json.dumps(kept, default=lambda value: vars(value) if isinstance(value, Namespace) else str(value))
    )


@dataclass(frozen=True)
class Reached:
    """A limit that a checkpoint has reached, by its own counts.

    Attributes:
        unit: `steps` or `epochs`; the limit is then trainer.max_steps or trainer.max_epochs.
    """

    unit: str
    wanted: int
    done: int


def limit_reached(checkpoint: Checkpoint, trainer: Namespace) -> Reached | None:
    """The first limit in the config's `trainer` that leaves nothing to do, None where there is none."""
    epochs = trainer.max_epochs
    if epochs is None and trainer.max_steps == -1 and trainer.max_time is None:
        epochs = DEFAULT_EPOCHS
    counts = (
        Reached("steps", trainer.max_steps, steps_of(checkpoint)),
        Reached("epochs", -1 if epochs is None else epochs, epochs_done(checkpoint.content["loops"]["fit_loop"])),
    )
    return next((count for count in counts if 0 < count.wanted <= count.done), None)


def ended_by_itself(checkpoint: Checkpoint, trainer: Namespace) -> Finished | None:
    """The end that the checkpoint's run has come to, where it is the last that was saved (its last steps may not have
    been) and the config's `trainer` would end it again."""
    end = read_finished(checkpoint.path.parent)
    return end if end is not None and end.asked == asked_of(trainer) and steps_of(checkpoint) == end.saved else None


@rank_zero_only
def write_finished(trainer: Trainer, asked: dict[str, Any]) -> None:
    """Notes that `fit` has come to its end, beside the checkpoints that it has saved to local folders."""
    if not trainer.state.finished:
        return
    for folder in _folders(trainer):
        try:
            newest = newest_in(folder)
            if newest is not None:
                end = Finished(steps=trainer.global_step, saved=steps_of(newest), reason=_reason(trainer), asked=asked)
                (folder / NAME).write_text(json.dumps(asdict(end)), encoding="utf-8")
        except (OSError, DataError) as error:
            rank_zero_warn(f"{folder}: that the run has ended cannot be noted ({error}); --ckpt_path last would go on")


def read_finished(folder: Path) -> Finished | None:
    """None where the run in this folder of checkpoints has not ended by itself."""
    try:
        return Finished(**json.loads((folder / NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _folders(trainer: Trainer) -> list[Path]:
    """Those of all ModelCheckpoints: `last` looks into all of them."""
    saving = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    paths = dict.fromkeys(str(callback.dirpath) for callback in saving if callback.dirpath)
    return [Path(path) for path in paths if "://" not in path and Path(path).is_dir()]


def _reason(trainer: Trainer) -> str:
    if 0 < trainer.max_steps <= trainer.global_step:
        return f"all {trainer.max_steps} steps"
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch:
        return f"all {trainer.max_epochs} epochs"
    stopping = trainer.early_stopping_callbacks
    if any(callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED for callback in stopping):
        return "EarlyStopping"
    timers = [callback for callback in trainer.callbacks if isinstance(callback, Timer)]
    if any((timer.time_remaining() or 0) < 0 for timer in timers):
        return "its time is used up"
    return f"{trainer.global_step} steps, when a callback stopped it"
