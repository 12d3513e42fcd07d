"""Checkpoints that are whole, or not there at all, whatever ends the process while one is written.

Each is written beside its place, under a hidden name, brought to the disk, and given its name by one rename.
(Lightning writes a single file in the system's temporary folder and moves it, which copies where that is another disk;
a sharded folder it fills in place.)
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.checkpoint import CheckpointException

from lightning_dar.errors import TrainingError
from lightning_dar.files import PARTIAL, partial_of, put_in_place, remove


class WholeFiles(TorchCheckpointIO):
    """Lightning's single files. Behind a URL as Lightning writes them: object stores show nothing half-written."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike, storage_options: Any | None = None
    ) -> None:
        """Raises TrainingError where the file cannot be written; what was there before is then as it was."""
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        path = Path(path)
        with writing(path) as partial:
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
            name_whole(path)

    def remove_checkpoint(self, path: str | os.PathLike) -> None:
        """Takes its name first: a folder half removed would look like a damaged checkpoint."""
        if "://" in str(path):
            super().remove_checkpoint(path)
            return
        path = Path(path)
        gone = partial_of(path)
        if path.exists():
            remove(gone)
            path.rename(gone)
            remove(gone)


@contextmanager
def writing(path: Path, is_global_zero: bool = True) -> Iterator[Path]:
    """The hidden place to write `path` at. Where the disk refuses, tidies up and raises TrainingError; where several
    ranks write together and torch tells them all, the others only end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial_of(path)
    except (OSError, RuntimeError, CheckpointException) as error:  # RuntimeError: a file that torch opens itself
        remove(partial_of(path))
        reason = " ".join(_reason(error).split())[:300]
        fail_together(
            is_global_zero or not isinstance(error, CheckpointException),
            f"the checkpoint {path} cannot be written ({reason}; {_free(path) / 2**30:.1f} GiB are free there); those "
            "before it are as they were, and --ckpt_path last goes on from the newest",
        )


def _reason(error: BaseException) -> str:
    """The reason for a failed save: that of the first process, where a sharded save failed in several."""
    return str(next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error)


def _free(path: Path) -> int:
    """Bytes on its disk."""
    return shutil.disk_usage(next(parent for parent in path.absolute().parents if parent.exists())).free


def name_whole(path: Path) -> None:
    """Gives what was written its name, in place of what has it now, and clears what killed processes have left."""
    partial = partial_of(path)
    for file in (partial, *partial.glob("*")):
        _bring_to_disk(file)
    put_in_place(partial, path)
    _bring_to_disk(path.parent)
    for left in path.parent.glob(f".*{PARTIAL}"):
        remove(left)


def _bring_to_disk(path: Path) -> None:
    if os.name == "posix":  # elsewhere folders cannot be opened
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def checkpoint_folder(trainer: L.Trainer) -> str | None:
    """The folder or URL in which the last ModelCheckpoint saves; None where none does."""
    saving = model_checkpoint(trainer)
    return saving.dirpath if saving else None


def model_checkpoint(trainer: L.Trainer) -> ModelCheckpoint | None:
    """The last one: other callbacks that save, such as OnExceptionCheckpoint, have a place of their own."""
    saving = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    return saving[-1] if saving else None


def fail_together(speaks: bool, message: str) -> NoReturn:
    """Ends a run for a reason that every rank has seen: one raises TrainingError with the message, the others only
    end."""
    if speaks:
        raise TrainingError(message)
    raise SystemExit(1)
