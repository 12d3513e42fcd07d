"""What a run needs of its logger beyond metrics: a folder, pictures and text, going on, and how to look at it.

Each kind of logger is one class below, found by the logger's class (`kind_of`); everything else asks these.
"""

import csv
import io
import os
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CometLogger, CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only

from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.errors import UsageError
from lightning_dar.run.state import TENSORBOARD, state_of

DEFAULT_NAME = "lightning_logs"  # Lightning's
Settings = dict[str, Any]
"""Of a logger's constructor."""


class Kind:
    """A logger that nothing is known of. The base of the others."""

    def run_folders(self, settings: Settings, root: str) -> list[Path] | None:
        """The folders of the runs that a logger with these settings has made, the newest first: Lightning puts each
        run's checkpoints below its folder. None where they are not known. Raises UsageError for a URL.

        Args:
            root: the trainer's `default_root_dir`.
        """
        return None

    def continued(self, settings: Settings, version: Any, steps: int) -> Settings:
        """The settings by which the logger goes on in its run `version`, after `steps` optimizer steps."""
        return settings

    def take_up(self, logger: Logger, steps: int) -> None:
        """What is to be done to the logger that goes on, on rank 0, before it logs anything."""

    def log_picture(self, logger: Logger, key: str, picture: Any, step: int) -> None:
        """
        Args:
            picture: uint8 [height, width, 3].
        """
        if hasattr(logger, "log_image"):  # by Lightning's convention
            logger.log_image(key, [picture], step=step)

    def log_text(self, logger: Logger, key: str, text: str, step: int) -> None:
        if hasattr(logger, "log_text"):
            logger.log_text(key, columns=["text"], data=[[text]], step=step)

    def places(self, logger: Logger) -> list[tuple[str, str]]:
        """Rows of a summary: where the logs are, and the command that shows them."""
        return [] if logger.save_dir is None else [("logs", str(logger.save_dir))]


class _Versions(Kind):
    """SAVE_DIR/NAME/version_N."""

    def run_folders(self, settings: Settings, root: str) -> list[Path]:
        folder, version = local(settings["save_dir"]) / (settings.get("name") or ""), settings.get("version")
        if version is not None:
            return [folder / (version if isinstance(version, str) else f"version_{version}")]
        numbers = [path.name.removeprefix("version_") for path in folder.glob("version_*")]
        return [folder / f"version_{number}" for number in sorted(map(int, filter(str.isdecimal, numbers)))[::-1]]

    def continued(self, settings: Settings, version: Any, steps: int) -> Settings:
        own = {**settings, "version": version}
        return own if self.run_folders(own, ".")[0].is_dir() else settings


class _TensorBoard(_Versions):
    def continued(self, settings: Settings, version: Any, steps: int) -> Settings:
        own = super().continued(settings, version, steps)
        if own is settings:
            return own
        return {**own, "purge_step": steps, "default_hp_metric": False}  # which the first start has logged

    def log_picture(self, logger: TensorBoardLogger, key: str, picture: Any, step: int) -> None:
        logger.experiment.add_image(key, picture, step, dataformats="HWC")

    def log_text(self, logger: TensorBoardLogger, key: str, text: str, step: int) -> None:
        logger.experiment.add_text(key, f"```\n{text}\n```", step)

    def places(self, logger: TensorBoardLogger) -> list[tuple[str, str]]:
        folder = shown(logger.log_dir)
        return [("logs", folder), ("to look at them", shlex.join(["tensorboard", "--logdir", os.path.dirname(folder)]))]


class _CSV(_Versions):
    def take_up(self, logger: CSVLogger, steps: int) -> None:
        logger._experiment = KeptRows(logger.log_dir, steps)

    def places(self, logger: CSVLogger) -> list[tuple[str, str]]:
        return [("logs", shown(os.path.join(logger.log_dir, KeptRows.NAME_METRICS_FILE)))]


class _WandB(Kind):
    """SAVE_DIR/PROJECT/ID, beside W&B's own SAVE_DIR/wandb."""

    def run_folders(self, settings: Settings, root: str) -> list[Path]:
        folder = local(settings.get("save_dir") or settings.get("dir") or root)
        folder /= settings.get("project") or os.environ.get("WANDB_PROJECT", "lightning_logs")
        run = settings.get("version") or settings.get("id") or os.environ.get("WANDB_RUN_ID")
        return [folder / run] if run else last_saved(folder)

    def continued(self, settings: Settings, version: Any, steps: int) -> Settings:
        return {**settings, "version": None, "id": version}

    def log_text(self, logger: WandbLogger, key: str, text: str, step: int) -> None:
        logger.log_text(key, columns=["step", "text"], data=[[step, text]], step=step)

    def places(self, logger: WandbLogger) -> list[tuple[str, str]]:
        run = logger.experiment
        if not run.offline:
            return [("logs", run.url)] if run.url else []
        folder = Path(run.sync_dir)
        starts = sorted(folder.parent.glob(f"offline-run-*-{run.id}")) or [folder]  # one for each time that it went on
        return [
            ("logs", shown(folder)),
            ("to look at them", shlex.join(["wandb", "sync", *(shown(path) for path in starts)])),
        ]


class _MLflow(Kind):
    """SAVE_DIR/EXPERIMENT/RUN, by their ids; a store that is no folder has its runs' checkpoints below the root."""

    def run_folders(self, settings: Settings, root: str) -> list[Path]:
        uri = settings.get("tracking_uri") or f"file:{settings.get('save_dir')}"
        folder = local(uri.removeprefix("file:")) if uri.startswith("file:") else local(root)
        if settings.get("run_id"):
            return sorted(folder.glob(f"*/{settings['run_id']}"))
        if not any(folder.glob("*/*/checkpoints")):
            return []  # and the store, which may not be there yet, is not asked
        from mlflow.tracking import MlflowClient

        experiment = MlflowClient(uri).get_experiment_by_name(settings["experiment_name"])
        return [] if experiment is None else last_saved(folder / experiment.experiment_id)

    def continued(self, settings: Settings, version: Any, steps: int) -> Settings:
        return {**settings, "run_id": version}

    def take_up(self, logger: MLFlowLogger, steps: int) -> None:
        """A run's parameters cannot change: what may (such as the batch size) stays as it was when the run began."""
        from lightning.fabric.utilities.logger import _convert_params, _flatten_dict

        client, log = logger.experiment, logger.log_hyperparams
        client.update_run(logger.run_id, status="RUNNING")
        has = client.get_run(logger.run_id).data.params
        logger.log_hyperparams = lambda params: log(
            {key: value for key, value in _flatten_dict(_convert_params(params)).items() if key not in has}
        )

    def log_picture(self, logger: MLFlowLogger, key: str, picture: Any, step: int) -> None:
        logger.experiment.log_image(logger.run_id, picture, key=key, step=step)

    def log_text(self, logger: MLFlowLogger, key: str, text: str, step: int) -> None:
        logger.experiment.log_text(logger.run_id, text, f"{key}/step_{step}.txt")

    def places(self, logger: MLFlowLogger) -> list[tuple[str, str]]:
        uri = logger._tracking_uri
        if uri.startswith("http"):
            return [("logs", f"{uri}/#/experiments/{logger.experiment_id}/runs/{logger.run_id}")]
        return [("logs", uri), ("to look at them", shlex.join(["mlflow", "ui", "--backend-store-uri", uri]))]


class _Comet(Kind):
    """OFFLINE_DIRECTORY/PROJECT/KEY."""

    def run_folders(self, settings: Settings, root: str) -> list[Path] | None:
        if not settings.get("project"):
            return None  # Comet chooses
        folder = local(settings.get("offline_directory") or root) / settings["project"]
        return [folder / settings["experiment_key"]] if settings.get("experiment_key") else last_saved(folder)

    def continued(self, settings: Settings, version: Any, steps: int) -> Settings:
        return {**settings, "experiment_key": version}

    def log_picture(self, logger: CometLogger, key: str, picture: Any, step: int) -> None:
        logger.experiment.log_image(picture, name=key, step=step)

    def log_text(self, logger: CometLogger, key: str, text: str, step: int) -> None:
        logger.experiment.log_text(text, step=step, metadata={"key": key})

    def places(self, logger: CometLogger) -> list[tuple[str, str]]:
        return [("logs", logger.experiment.url)] if logger.experiment.url else super().places(logger)


class KeptRows(ExperimentWriter):
    """Lightning's writer of metrics.csv, which keeps the rows of the first `steps` optimizer steps (Lightning counts
    them from 0) and drops the later ones, as those steps are done again."""

    def __init__(self, log_dir: str, steps: int):
        super().__init__(log_dir)
        if not self._fs.isfile(self.metrics_file_path):
            return
        with self._fs.open(self.metrics_file_path, "r", newline="") as file:
            text = file.read()
        whole = text[: text.rfind("\n") + 1]  # a kill may have cut off the last row
        reader = csv.DictReader(io.StringIO(whole))
        rows = [row for row in reader if int(row["step"]) < steps]
        self.metrics_keys = list(reader.fieldnames or [])
        partial = os.path.join(log_dir, f".{self.NAME_METRICS_FILE}")
        with self._fs.open(partial, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=self.metrics_keys, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        self._fs.mv(partial, self.metrics_file_path)  # whole, whatever ends the process before it

    def _check_log_dir_exists(self) -> None:
        """Overrides Lightning's, which deletes the file."""


KINDS: dict[type, Kind] = {
    TensorBoardLogger: _TensorBoard(),
    CSVLogger: _CSV(),
    WandbLogger: _WandB(),
    MLFlowLogger: _MLflow(),
    CometLogger: _Comet(),
}


def kind_of(logger_class: Any) -> Kind:
    return next((KINDS[base] for base in getattr(logger_class, "__mro__", ()) if base in KINDS), Kind())


def class_named(class_path: str) -> Any:
    """What a `class_path` that has been parsed names."""
    module, _, name = class_path.rpartition(".")
    return getattr(import_module(module), name)


def run_folder(trainer: Trainer) -> str:
    """The run's own folder, which its checkpoints lie below. `Trainer.log_dir` is that of all runs for loggers other
    than TensorBoard's and CSV's. Asks all ranks."""
    if not trainer.loggers or isinstance(trainer.loggers[0], TensorBoardLogger | CSVLogger):
        return trainer.log_dir
    logger = trainer.loggers[0]
    version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
    folder = os.path.join(logger.save_dir or trainer.default_root_dir, str(logger.name), version)
    return trainer.strategy.broadcast(folder)  # rank 0 alone knows the version


def last_saved(folder: Path) -> list[Path]:
    """The runs in a folder, that which saved a checkpoint last first."""
    saved = folder.glob("*/checkpoints")
    return [path.parent for path in sorted(saved, key=lambda path: path.stat().st_mtime, reverse=True)]


def local(folder: str | Path) -> Path:
    """Raises UsageError for a URL."""
    if "://" in str(folder):
        raise UsageError(f"--ckpt_path last: {folder} is not looked into; give the checkpoint's path")
    return Path(folder)


def shown(path: str | Path) -> str:
    """Relative to the working directory where it lies below it."""
    if "://" in str(path):
        return str(path)
    path = Path(path).absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def loggers_of(trainer: Namespace) -> list[Namespace]:
    logger = trainer.logger
    if logger is False:
        return []
    if logger in (None, True):
        init = Namespace(save_dir=trainer.default_root_dir or ".", name=DEFAULT_NAME)
        return [Namespace(class_path=TENSORBOARD, init_args=init)]
    return list(logger) if isinstance(logger, list) else [logger]


def run_of(loggers: list[Logger]) -> list[dict[str, Any]]:
    """The class and the version of each logger: the run that a checkpoint belongs to."""
    return [{"logger": _name(type(logger)), "version": logger.version} for logger in loggers]


def same_logs(trainer: Namespace, checkpoint: Checkpoint) -> dict[str, Any]:
    """Settings of the trainer with which its loggers go on in the runs that the checkpoint belongs to. A logger that
    has been added since begins a run of its own."""
    runs, loggers = list(state_of(checkpoint.content).logs), []
    for logger in loggers_of(trainer):
        entry, cls = logger.as_dict(), class_named(logger.class_path)
        run = next((run for run in runs if run["logger"] == _name(cls)), None)
        if run is not None:
            runs.remove(run)
            settings = entry.get("init_args", {})
            entry["init_args"] = kind_of(cls).continued(settings, run["version"], checkpoint.steps)
        loggers.append(entry)
    return {"logger": loggers} if loggers else {}


@rank_zero_only
def take_up_logs(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Makes the loggers that `same_logs` has set up go on where the checkpoint was saved."""
    versions = [(run["logger"], run["version"]) for run in state_of(checkpoint.content).logs]
    for logger in trainer.loggers:
        if (_name(type(logger)), logger.version) in versions:
            kind_of(type(logger)).take_up(logger, checkpoint.steps)


def _name(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
