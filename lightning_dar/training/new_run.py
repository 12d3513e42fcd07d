"""The folders of a new run, taken so that no two runs ever share one.

A version folder, or a folder for checkpoints, is taken by creating it, which one process alone can do: runs that start
at the same moment get one each.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from lightning_dar.errors import DataError, UsageError

GO_ON = "--ckpt_path last goes on with it"


@contextmanager
def taken_folders(trainer: Trainer, goes_on: bool) -> Iterator[None]:
    """Takes the folders that a new run will write to, and gives back those where it has written nothing.

    On rank 0 alone: it tells the others where the run lies. Folders behind URLs are not taken.

    Args:
        trainer: before it trains.
        goes_on: whether folders that are asked for by name may hold an earlier start of this run.

    Raises:
        UsageError: a folder that is asked for by name and holds another run.
        DataError: a folder for logs that cannot be made.
    """
    taken: list[Path] = []
    try:
        if rank_zero_only.rank == 0 and not trainer.fast_dev_run:
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger | CSVLogger) and "://" not in str(logger.root_dir):
                    try:
                        taken.append(_version_folder(logger, goes_on))
                    except OSError as error:
                        raise DataError(f"trainer.logger: {type(logger).__name__}: {error}") from error
            for folder in _checkpoint_folders(trainer):
                taken.append(_take(folder, goes_on, "give ModelCheckpoint another dirpath"))
        yield
    finally:
        for folder in reversed(taken):
            with suppress(OSError):  # something is in it
                folder.rmdir()


def _version_folder(logger: TensorBoardLogger | CSVLogger, goes_on: bool) -> Path:
    """The one that the logger is told, or the next that is free."""
    root = Path(logger.root_dir)
    if logger._version is not None:
        return _take(Path(logger.log_dir), goes_on, "leave trainer.logger.init_args.version unset")
    number = logger._get_next_version()
    while True:
        folder = root / f"version_{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            logger._version = number
            return folder


def _checkpoint_folders(trainer: Trainer) -> list[Path]:
    """Those outside of a logger's run: told to a ModelCheckpoint, or the usual one where nothing is logged."""
    folders = []
    for callback in trainer.callbacks:
        if isinstance(callback, Checkpoint) and hasattr(callback, "dirpath"):
            told = callback.dirpath or (
                "" if trainer.loggers else os.path.join(trainer.default_root_dir, "checkpoints")
            )
            if told and "://" not in str(told):
                folders.append(Path(told))
    return list(dict.fromkeys(folders))


def _take(folder: Path, goes_on: bool, remedy: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=goes_on)
    except FileExistsError as error:
        raise UsageError(f"{folder}: another run has taken this folder; {remedy}, or {GO_ON}") from error
    return folder
