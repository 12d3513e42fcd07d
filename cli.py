"""The command line: fit, validate and prepare, on LightningCLI.

python cli.py fit --config configs/quickstart.yaml
python cli.py fit --config configs/quickstart.yaml --model.residual.name delta-block
python cli.py validate --ckpt_path runs/quickstart/version_0/checkpoints/last.ckpt
python cli.py prepare --config configs/delta_1b.yaml
"""

import json
import sys
from itertools import pairwise
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from lightning_dar.checkpoint.description import DESCRIPTION_KEY
from lightning_dar.checkpoint.load import read_checkpoint
from lightning_dar.checkpoint.settings import TRAINER_KEY, own_tokenizer, settings_of
from lightning_dar.data import TextData
from lightning_dar.errors import DataError, UsageError
from lightning_dar.residual import load_plugins
from lightning_dar.residual.registry import residual_class
from lightning_dar.training import LanguageModel

DEFAULT_CALLBACKS = [
    {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"save_last": "link"}},
    {"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"},
    {"class_path": "callbacks.RoutingSharpness"},
    {"class_path": "callbacks.Throughput"},
    {"class_path": "callbacks.SampleText"},
    {"class_path": "callbacks.FinalValidation"},
    {"class_path": "callbacks.RunSummary"},
]
VALIDATE_TRAINER = {
    "logger": False,
    "enable_checkpointing": False,
    "callbacks": [{"class_path": "callbacks.RoutingSharpness"}],
}


class RoutedTrainer(Trainer):
    """Lightning's trainer, and the one verb that the data adds to it."""

    def prepare(self, model: None, datamodule: LightningDataModule) -> None:
        """Prepares the data that a config names: text to token shards. `fit` does it too, where it is missing."""
        datamodule.prepare_data()


class SaveConfig(SaveConfigCallback):
    """Writes config.yaml beside the logs, and the trainer's part of it into every checkpoint, so that
    `fit --ckpt_path` alone continues a run as it was set up."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.logger is not None:
            super().setup(trainer, pl_module, stage)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        config = json.loads(self.parser.dump(self.config, format="json", skip_none=False))
        checkpoint[TRAINER_KEY] = {key: config.get(key) for key in ("trainer", "seed_everything")}


class OneLineParser(LightningArgumentParser):
    """Says what is wrong in one line, and where the options are described."""

    def error(self, message: str, ex: Exception | None = None) -> None:
        if isinstance(ex, UsageError | DataError):
            raise ex
        line = " ".join(message.split())
        self.exit(2, f"error: {line} (--help lists the options)\n")


class RoutedCLI(LightningCLI):
    """LightningCLI with plugins, and with settings taken from the checkpoint."""

    def __init__(self, args: ArgsType = None):
        super().__init__(
            LanguageModel,
            TextData,
            trainer_class=RoutedTrainer,
            save_config_callback=SaveConfig,
            seed_everything_default=42,
            parser_class=OneLineParser,
            auto_configure_optimizers=False,
            args=args,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {
            "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule"},
            "validate": {"model", "dataloaders", "datamodule"},
            "prepare": {"model", "datamodule"},
        }

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.set_defaults({"trainer.callbacks": DEFAULT_CALLBACKS})
        parser.add_argument(
            "--plugins",
            type=str | list[str],
            default=[],
            help="Module, or list of modules, that register residual strategies, such as my_package.my_module.",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Settings come from the checkpoint first; config files and options of the command line override them."""
        args = sys.argv[1:] if args is None else list(args)
        path = _checkpoint_path(args)
        self.checkpoint = None if path is None else read_checkpoint(path)
        if self.checkpoint is not None:
            settings = settings_of(self.checkpoint, resume=args[0] == "fit")
            if args[0] == "validate":
                settings["trainer"] |= VALIDATE_TRAINER
            args = [args[0], "--config", json.dumps(settings), *args[1:]]
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """Overrides LightningCLI: architecture, strategy and tokenizer are always the checkpoint's."""
        if self.checkpoint is None:
            return
        saved = settings_of(self.checkpoint, resume=False)
        forced = {"model": {key: value for key, value in saved["model"].items() if key != "optimizer"}}
        data = self.config[self.config.subcommand].data
        if data.source != saved["data"].get("source"):  # other text goes to another folder, by the same tokenizer
            forced["data"] = {"dir": None} if data.dir == saved["data"].get("dir") else {}
            if data.tokenizer == saved["data"].get("tokenizer"):
                forced["data"]["tokenizer"] = own_tokenizer(self.checkpoint) or data.tokenizer
        self.config = self.parser.parse_object({self.config.subcommand: forced}, self.config)

    def before_instantiate_classes(self) -> None:
        plugins = self._get(self.config, "plugins")
        load_plugins([plugins] if isinstance(plugins, str) else plugins)
        if self.checkpoint is not None:
            description = self.checkpoint[DESCRIPTION_KEY]
            residual_class(description["residual"]["name"], description["plugin"])
        accelerator = self._get(self.config, "trainer").accelerator
        if self.subcommand != "prepare" and accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
            raise UsageError(
                f"trainer.accelerator={accelerator}: this config needs a CUDA GPU and none was found; "
                "configs/quickstart.yaml runs on this machine"
            )

    def instantiate_classes(self) -> None:
        """For `prepare` the data alone: the config's model and trainer may need what this machine lacks."""
        if self.subcommand != "prepare":
            return super().instantiate_classes()
        self.config_init = self.config
        self.model, self.datamodule = None, TextData(**self._get(self.config, "data"))
        self.trainer = RoutedTrainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)


def _checkpoint_path(args: list[str]) -> str | None:
    """The checkpoint named on the command line; None if none is, or one that Lightning finds itself (`last`)."""
    named = [value for key, value in pairwise(args) if key == "--ckpt_path"]
    named += [arg.split("=", 1)[1] for arg in args if arg.startswith("--ckpt_path=")]
    return named[-1] if named and named[-1] not in ("last", "best", "hpc", "null") else None


def main(args: ArgsType = None) -> None:
    """Runs a subcommand; bad input ends in one line and status 2 (usage) or 1 (data)."""
    try:
        RoutedCLI(args)
    except (UsageError, MisconfigurationException) as error:
        sys.exit(_say(error, 2))
    except DataError as error:
        sys.exit(_say(error, 1))


def _say(error: Exception, status: int) -> int:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
