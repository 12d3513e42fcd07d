"""The settings of a run, beside its logs and in its checkpoints."""

import json
import os
from functools import cached_property
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.utilities.cloud_io import get_filesystem
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, SaveConfigCallback

from lightning_dar.errors import UsageError
from lightning_dar.run.continued import RUN_KEY, run_of
from lightning_dar.run.loggers import run_folder
from lightning_dar.run.settings import TRAINER_KEY


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
        checkpoint[TRAINER_KEY] = self._settings
        checkpoint[RUN_KEY] = run_of(trainer.loggers)
        for logger in trainer.loggers:
            logger.save()  # what comes before a checkpoint is not logged again after it

    @cached_property
    def _settings(self) -> dict[str, Any]:
        config = json.loads(self.parser.dump(self.config, format="json", skip_unset=False))
        return {key: config.get(key) for key in ("trainer", "seed_everything")}
