"""What a run leaves beside its checkpoints when it has ended by itself: a later `--ckpt_path last` has nothing to do.

A run that a signal, Ctrl-C or an error has ended leaves nothing, and goes on.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.utilities import rank_zero_only

NAME = "finished.json"
LIMITS = ("max_steps", "max_epochs", "max_time", "min_steps", "min_epochs", "limit_train_batches", "callbacks")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of a run.

    Attributes:
        steps: optimizer steps done.
        epochs: whole passes done.
        reason: what ended it, in words: "all 4 steps", "EarlyStopping".
        asked: the trainer's settings that decide when a run ends. Others make it go on.
    """

    steps: int
    epochs: int
    reason: str
    asked: dict[str, Any]


def asked_of(trainer: Namespace) -> dict[str, Any]:
    """`Finished.asked` for the trainer's section of a config, in types that JSON has."""
    kept = {key: trainer.get(key) for key in LIMITS}
    return json.loads(
        json.dumps(kept, default=lambda value: vars(value) if isinstance(value, Namespace) else str(value))
    )


@rank_zero_only
def write_finished(trainer: Trainer, asked: dict[str, Any]) -> None:
    """Notes that `fit` has come to its end. Does nothing where no checkpoint has been saved to a local folder."""
    if trainer.state.finished:
        end = Finished(steps=trainer.global_step, epochs=trainer.current_epoch, reason=_reason(trainer), asked=asked)
        for folder in _folders(trainer):
            (folder / NAME).write_text(json.dumps(asdict(end)), encoding="utf-8")


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
    return f"{trainer.global_step} steps, when a callback stopped it"
