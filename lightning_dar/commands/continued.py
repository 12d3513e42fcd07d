"""`--ckpt_path last`: the newest run that a config's trainer has made goes on as if it had never stopped."""

import re
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.checkpoint.saved import newest_in, steps_of
from lightning_dar.errors import UsageError

TENSORBOARD = "lightning.pytorch.loggers.TensorBoardLogger"
SAVING = "ModelCheckpoint"
DEFAULT_NAME = "lightning_logs"  # Lightning's
RUN_KEY = "lightning_dar_run"  # in a checkpoint: the version of its run's first logger


def last_checkpoint(trainer: Namespace) -> Checkpoint | None:
    """The newest checkpoint of the newest run that has one, None where there is none.

    A run is a version folder of the first logger, or the folder that ModelCheckpoint is told.

    Raises:
        UsageError: a logger of whose folders nothing is known, or a URL.
        DataError: as `newest_in` does.
    """
    folders = [told] if (told := _told_folder(trainer)) else [run / "checkpoints" for run in _runs(trainer)]
    return next((found for folder in folders if (found := newest_in(folder))), None)


def same_logs(trainer: Namespace, checkpoint: Checkpoint) -> dict[str, Any]:
    """Settings of the trainer with which its logger goes on in the run's own folder.

    What the interrupted run has logged of the steps after the checkpoint is overridden as those are done again.
    """
    loggers = _loggers(trainer)
    if not loggers or loggers[0].class_path != TENSORBOARD:
        return {}
    settings = {
        **loggers[0].init_args.as_dict(),
        "version": checkpoint.content.get(RUN_KEY),
        "default_hp_metric": False,  # which the first start has logged
        "purge_step": steps_of(checkpoint),
    }
    first = {"class_path": TENSORBOARD, "init_args": settings}
    return {"logger": [first, *(logger.as_dict() for logger in loggers[1:])]}


def _told_folder(trainer: Namespace) -> Path | None:
    """Of the last ModelCheckpoint, which is also the one that `callbacks.Interruption` saves beside."""
    saving = [callback for callback in trainer.callbacks or [] if callback.class_path.endswith(SAVING)]
    folder = saving[-1].get("init_args", Namespace()).get("dirpath") if saving else None
    return _local(folder).expanduser() if folder else None


def _runs(trainer: Namespace) -> list[Path]:
    """The folders of all runs, the newest first."""
    loggers = _loggers(trainer)
    if not loggers:
        return [_local(trainer.default_root_dir or ".")]
    if loggers[0].class_path != TENSORBOARD:
        name = loggers[0].class_path.rpartition(".")[2]
        raise UsageError(
            f"--ckpt_path last: {name} does not tell where its runs are; give the checkpoint's path, or a folder "
            f"(dirpath) for {SAVING}"
        )
    settings = loggers[0].init_args
    root, version = _local(settings.save_dir) / (settings.get("name") or ""), settings.get("version")
    if version is not None:
        return [root / (version if isinstance(version, str) else f"version_{version}")]
    numbers = [re.fullmatch(r"version_(\d+)", path.name) for path in root.glob("version_*")]
    newest_first = sorted((int(number[1]) for number in numbers if number), reverse=True)
    return [root / f"version_{number}" for number in newest_first]


def _local(folder: str | Path) -> Path:
    if "://" in str(folder):
        raise UsageError(f"--ckpt_path last: {folder} is not looked into; give the checkpoint's path")
    return Path(folder)


def _loggers(trainer: Namespace) -> list[Namespace]:
    logger = trainer.logger
    if logger is False:
        return []
    if logger in (None, True):
        init = Namespace(save_dir=trainer.default_root_dir or ".", name=DEFAULT_NAME)
        return [Namespace(class_path=TENSORBOARD, init_args=init)]
    return list(logger) if isinstance(logger, list) else [logger]
