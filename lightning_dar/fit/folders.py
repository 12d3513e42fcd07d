"""The folders of a run, and the config.yaml in them.

They are its own: taken when it begins, held while it trains, and used again only where it goes on.

A numbered version is taken by creating its folder, which one process alone can do: runs that start at the same moment
get one each. Any other folder is taken by a lock in it, which lasts as long as the process does.
"""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from jsonargparse import Namespace
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from lightning_dar.errors import DataError, UsageError
from lightning_dar.run.loggers import run_folder, run_of
from lightning_dar.run.state import add_state

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

GO_ON = "--ckpt_path last goes on with it"
LOCK = ".lock"
OF_A_RUN = ("config.yaml", "events.*", "metrics.csv", "[!.]*.ckpt", "checkpoints/[!.]*.ckpt")


class SaveConfig(SaveConfigCallback):
    """Writes config.yaml beside the logs, and the trainer's part of it into every checkpoint, so that
    `fit --ckpt_path` alone continues a run as it was set up."""

    def __init__(
        self, parser: LightningArgumentParser, config: Namespace, given: dict[str, Any] | None = None, **options: Any
    ):
        """
        Args:
            given: settings, by key, as they were before a run that goes on changed them: who uses the file again
                starts a run of its own.
        """
        config = config.clone()
        for key, value in (given or {}).items():
            config[key] = value
        super().__init__(parser, config, save_to_log_dir=False, **options)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.logger is not None:
            self._path = os.path.join(run_folder(trainer), self.config_filename)  # asks all ranks
            exists = trainer.is_global_zero and get_filesystem(self._path).isfile(self._path)
            if trainer.strategy.broadcast(exists) and not self.overwrite:
                raise UsageError(
                    f"{self._path}: of another run; give the logger no id or version, or go on by --ckpt_path last"
                )
            super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        get_filesystem(self._path).makedirs(os.path.dirname(self._path), exist_ok=True)
        self.parser.save(self.config, self._path, skip_unset=False, overwrite=self.overwrite, multifile=self.multifile)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        add_state(checkpoint, settings=self._settings, logs=run_of(trainer.loggers))
        for logger in trainer.loggers:
            logger.save()  # what comes before a checkpoint is not logged again after it

    @cached_property
    def _settings(self) -> dict[str, Any]:
        config = json.loads(self.parser.dump(self.config, format="json", skip_unset=False))
        return {key: config.get(key) for key in ("trainer", "seed_everything")}


@contextmanager
def taken_folders(trainer: Trainer, goes_on: bool, source: Path | None = None) -> Iterator[None]:
    """Takes the folders that a run will write to, and gives back those where it has written nothing.

    On rank 0 alone: it tells the others where the run lies. Folders behind URLs are not taken.

    Args:
        trainer: before it trains.
        goes_on: whether folders that are asked for by name may hold an earlier start of this run.
        source: the checkpoint that training starts from. Its folder was named with it and may be written to again.

    Raises:
        UsageError: a folder that is asked for by name and holds another run, or that another process writes to.
        DataError: a folder that cannot be made or written to.
    """
    with ExitStack() as held:
        if rank_zero_only.rank == 0 and not trainer.fast_dev_run:
            own = source.parent if source is not None else None
            wanted = {own: ""} if goes_on and own is not None else {}  # remedies by folder
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger | CSVLogger) and "://" not in str(logger.root_dir):
                    try:
                        wanted[_version_folder(logger)] = "leave trainer.logger.init_args.version unset"
                    except OSError as error:
                        raise DataError(f"trainer.logger: {type(logger).__name__}: {error}") from error
            wanted |= {folder: "give ModelCheckpoint another dirpath" for folder in _checkpoint_folders(trainer)}
            for folder, remedy in {folder.resolve(): remedy for folder, remedy in wanted.items()}.items():
                held.enter_context(_held(folder))
                may_be_used = goes_on or (own is not None and folder == own.resolve())
                if not may_be_used and any(any(folder.glob(pattern)) for pattern in OF_A_RUN):
                    raise UsageError(f"{_shown(folder)}: another run has taken this folder; {remedy}, or {GO_ON}")
        yield


def _version_folder(logger: TensorBoardLogger | CSVLogger) -> Path:
    """The one that the logger is told, or the next that is free."""
    if logger._version is not None:
        return Path(logger.log_dir)
    for number in count(logger._get_next_version()):
        logger._version = number
        folder = Path(logger.log_dir)
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def _checkpoint_folders(trainer: Trainer) -> list[Path]:
    """The folders of checkpoints outside of a logger's run: those given to a ModelCheckpoint, or the usual one where
    nothing is logged."""
    folders = []
    for callback in trainer.callbacks:
        if isinstance(callback, Checkpoint) and hasattr(callback, "dirpath"):
            told = callback.dirpath or (
                "" if trainer.loggers else os.path.join(trainer.default_root_dir, "checkpoints")
            )
            if told and "://" not in str(told):
                folders.append(Path(told))
    return folders


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Makes the folder and keeps other processes out, as far as its disk knows locks."""
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
    except OSError as error:
        raise DataError(f"{_shown(folder)}: cannot be written ({error.strerror or error}); choose another") from error
    if lock is None:
        raise UsageError(f"{_shown(folder)}: another process is training and writes there; wait for its end, or end it")
    try:
        yield
    finally:
        with suppress(OSError):  # something is in the folder
            path.unlink(missing_ok=True)
            folder.rmdir()
        lock.close()


def _locked(path: Path) -> TextIO | None:
    """The open file, locked for this process but not for those that it starts; None where another one holds it."""
    while True:
        file = path.open("a")
        try:
            if fcntl is not None:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                file.close()
                return None
        if fcntl is None or _is_at(path, file):
            return file
        file.close()  # who held it before has removed it in between


def _is_at(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _shown(folder: Path) -> str:
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
