"""`--ckpt_path last`: the newest run that a config's trainer has made goes on as if it had never stopped."""

from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.errors import UsageError
from lightning_dar.run.loggers import class_named, kind_of, local
from lightning_dar.run.saved import newest_in, saved_at, steps_of

TENSORBOARD = "lightning.pytorch.loggers.TensorBoardLogger"
SAVING = "ModelCheckpoint"
DEFAULT_NAME = "lightning_logs"  # Lightning's
RUN_KEY = "lightning_dar_run"  # in a checkpoint: what `run_of` gives


def last_checkpoint(trainer: Namespace) -> Checkpoint | None:
    """The newest checkpoint that training can go on from, None where there is none.

    It is looked for in the folders that ModelCheckpoints are told and, where one is told none, in the newest version
    folder of the first logger that has one.

    Raises:
        UsageError: a logger of whose folders nothing is known, or a URL.
        DataError: as `newest_in` does.
    """
    saving = [callback for callback in trainer.callbacks or [] if callback.class_path.endswith(SAVING)]
    told = [folder for callback in saving if (folder := _told_folder(callback))]
    found = [newest_in(folder) for folder in dict.fromkeys(told)]
    if len(told) < max(1, len(saving)):
        folders = (run / "checkpoints" for run in _runs(trainer, told))
        found.append(next((newest for folder in folders if (newest := newest_in(folder))), None))
    return max(filter(None, found), key=saved_at, default=None)


def run_of(loggers: list[Logger]) -> list[dict[str, Any]]:
    """The class and the version of each logger: the run that a checkpoint belongs to."""
    return [{"logger": _name(type(logger)), "version": logger.version} for logger in loggers]


def same_logs(trainer: Namespace, checkpoint: Checkpoint) -> dict[str, Any]:
    """Settings of the trainer with which its loggers go on in the runs that the checkpoint belongs to. A logger that
    has been added since begins a run of its own."""
    runs, loggers = _saved_run(checkpoint), []
    for logger in _loggers(trainer):
        entry, cls = logger.as_dict(), class_named(logger.class_path)
        run = next((run for run in runs if run["logger"] == _name(cls)), None)
        if run is not None:
            runs.remove(run)
            settings = entry.get("init_args", {})
            entry["init_args"] = kind_of(cls).continued(settings, run["version"], steps_of(checkpoint))
        loggers.append(entry)
    return {"logger": loggers} if loggers else {}


@rank_zero_only
def take_up_logs(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Makes the loggers that `same_logs` has set up go on where the checkpoint was saved."""
    versions = [(run["logger"], run["version"]) for run in _saved_run(checkpoint)]
    for logger in trainer.loggers:
        if (_name(type(logger)), logger.version) in versions:
            kind_of(type(logger)).take_up(logger, steps_of(checkpoint))


def _saved_run(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    saved = checkpoint.content.get(RUN_KEY)
    if saved is None or isinstance(saved, list):
        return list(saved or [])
    return [{"logger": _name(TensorBoardLogger), "version": saved}]  # of an earlier release


def _name(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _told_folder(saving: Namespace) -> Path | None:
    folder = saving.get("init_args", Namespace()).get("dirpath")
    return local(folder) if folder else None


def _runs(trainer: Namespace, told: list[Path]) -> list[Path]:
    """The folders of all runs, the newest first. Raises UsageError where they are not known, and none are `told`."""
    root, loggers = trainer.default_root_dir or ".", _loggers(trainer)
    if not loggers:
        return [local(root)]
    entry = loggers[0].as_dict()
    settings = {**entry.get("init_args", {}), **(entry.get("dict_kwargs") or {})}
    folders = kind_of(class_named(loggers[0].class_path)).run_folders(settings, root)
    if folders is None and told:
        return []
    if folders is None:
        name = loggers[0].class_path.rpartition(".")[2]
        raise UsageError(
            f"--ckpt_path last: {name} does not tell where its runs are; give the checkpoint's path, or a folder "
            f"(dirpath) for {SAVING}"
        )
    return folders


def _loggers(trainer: Namespace) -> list[Namespace]:
    logger = trainer.logger
    if logger is False:
        return []
    if logger in (None, True):
        init = Namespace(save_dir=trainer.default_root_dir or ".", name=DEFAULT_NAME)
        return [Namespace(class_path=TENSORBOARD, init_args=init)]
    return list(logger) if isinstance(logger, list) else [logger]
