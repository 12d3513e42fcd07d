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


def last_checkpoint(trainer: Namespace) -> Checkpoint | None:
    """The newest checkpoint of the newest run, None where there is none.

    A run is a version folder of the first logger, or the folder that ModelCheckpoint is told. An older version is
    never taken: it may be another experiment.

    Raises:
        UsageError: a logger of whose folders nothing is known.
        DataError: as `newest_in` does.
    """
    folder = _told_folder(trainer)
    if folder is None:
        versions, version = _versions(trainer)
        if versions is None:
            folder = Path(trainer.default_root_dir or ".", "checkpoints")
        elif version is None:
            return None
        else:
            folder = versions / f"version_{version}" / "checkpoints"
    return newest_in(folder)


def same_logs(trainer: Namespace, checkpoint: Checkpoint) -> dict[str, Any]:
    """Settings of the trainer with which its logger goes on in the run's own folder.

    What the interrupted run has logged of the steps after the checkpoint is overridden as those are done again.
    """
    loggers = _loggers(trainer)
    if not loggers or loggers[0].class_path != TENSORBOARD:
        return {}
    own = {"version": _versions(trainer)[1], "default_hp_metric": False}  # the first start has logged that one
    first = {
        "class_path": TENSORBOARD,
        "init_args": {**loggers[0].init_args.as_dict(), **own},
        "dict_kwargs": {**_dict(loggers[0].get("dict_kwargs")), "purge_step": steps_of(checkpoint)},
    }
    return {"logger": [first, *(logger.as_dict() for logger in loggers[1:])]}


def without_run(trainer: dict[str, Any]) -> dict[str, Any]:
    """The trainer's settings without what `same_logs` adds: a run started from a named checkpoint is one of its own."""
    loggers = trainer.get("logger")
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        if isinstance(logger, dict) and logger.get("class_path") == TENSORBOARD:
            logger.get("init_args", {}).pop("version", None)
            logger.pop("dict_kwargs", None)
    return trainer


def _told_folder(trainer: Namespace) -> Path | None:
    for callback in trainer.callbacks or []:
        folder = callback.get("init_args", Namespace()).get("dirpath")
        if callback.class_path.endswith(SAVING) and folder:
            return Path(folder)
    return None


def _versions(trainer: Namespace) -> tuple[Path | None, int | None]:
    """The folder that has the runs as version folders, None without a logger, and the newest one's number."""
    loggers = _loggers(trainer)
    if not loggers:
        return None, None
    if loggers[0].class_path != TENSORBOARD:
        name = loggers[0].class_path.rpartition(".")[2]
        raise UsageError(
            f"--ckpt_path last: {name} does not tell where its runs are; give the checkpoint's path, or a folder "
            f"(dirpath) for {SAVING}"
        )
    settings = loggers[0].init_args
    root = Path(settings.save_dir, settings.get("name") or "")
    numbers = [re.fullmatch(r"version_(\d+)", path.name) for path in root.glob("version_*")]
    version = settings.get("version")
    return root, version if version is not None else max((int(number[1]) for number in numbers if number), default=None)


def _loggers(trainer: Namespace) -> list[Namespace]:
    logger = trainer.logger
    if logger is False:
        return []
    if logger in (None, True):
        init = Namespace(save_dir=trainer.default_root_dir or ".", name=DEFAULT_NAME)
        return [Namespace(class_path=TENSORBOARD, init_args=init)]
    return list(logger) if isinstance(logger, list) else [logger]


def _dict(value: Any) -> dict[str, Any]:
    return value.as_dict() if isinstance(value, Namespace) else value or {}
