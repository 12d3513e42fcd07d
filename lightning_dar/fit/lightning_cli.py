"""fit, validate and prepare, on LightningCLI."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from inspect import signature
from types import MappingProxyType
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from lightning_dar.checkpoint.load import Checkpoint, open_checkpoint, which_weights
from lightning_dar.errors import UsageError
from lightning_dar.fit.callbacks import DEFAULT_CALLBACKS, leave_out_unwritable, settle_callbacks
from lightning_dar.fit.checks import (
    check_gpu,
    check_launch,
    check_reads,
    refuse_another_optimizer,
    refuse_contradictions,
    refuse_intervals_of_zero,
    settle_precision,
)
from lightning_dar.fit.folders import SaveConfig, taken_folders
from lightning_dar.fit.refusals import Constructors, refusal_of, refusal_of_trainer
from lightning_dar.fit.terminal import notice, quiet
from lightning_dar.fit.trainer import RoutedTrainer, show_size
from lightning_dar.run.config import RunConfig, origin_of, resolve
from lightning_dar.run.last import (
    asked_of,
    ended_by_itself,
    last_checkpoint,
    limit_reached,
    open_or_offer,
    write_finished,
)
from lightning_dar.run.loggers import same_logs, take_up_logs
from lightning_dar.run.parser import OneLine, add_plugins, add_weights, table, use_plugins
from lightning_dar.run.saving import WholeFiles
from lightning_dar.text import TextData
from lightning_dar.training import LanguageModel
from lightning_dar.training.callbacks import check_callbacks

DEFAULT_TOKENIZER = signature(TextData).parameters["tokenizer"].default
DOMAIN_METRICS = ("loss", "perplexity", "bits_per_byte")
EMPTY: Mapping[str, Any] = MappingProxyType({})
FOUND_BY_LIGHTNING = ("last", "best", "hpc", "registry")  # `last` for fit is found by us
SUBCOMMANDS = {  # by name, the parameters of the trainer's method that the command line does not set
    "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule"},
    "validate": {"model", "dataloaders", "datamodule"},
    "prepare": {"model", "datamodule"},
}


class OneLineParser(OneLine, LightningArgumentParser):
    """LightningCLI's parser with errors of one line."""


class RoutedCLI(LightningCLI):
    """LightningCLI with plugins, and with settings taken from the checkpoint."""

    def __init__(self, args: ArgsType = None, tools: Mapping[str, Callable[[], ArgumentParser]] = EMPTY):
        """
        Args:
            args: the command line; by default that of the process.
            tools: commands that the help lists beside its own, each with what makes its parser.
        """
        self.args = sys.argv[1:] if args is None else args
        self.tools = tools
        with quiet():
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

    def subcommands(self) -> dict[str, set[str]]:
        """Overrides LightningCLI: only the one that a command line begins with, as each takes half a second to add."""
        first = self.args[0] if isinstance(self.args, list) and self.args else None
        return {first: SUBCOMMANDS[first]} if first in SUBCOMMANDS else SUBCOMMANDS

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.set_defaults({"trainer.callbacks": DEFAULT_CALLBACKS})
        add_plugins(parser)
        parser.add_argument(
            "--domains",
            type=dict[str, str],
            default={},
            help="Only for validate: several sources by name, such as {law: texts/law, code: src}, each validated by "
            "itself; gives a table, one row a domain.",
        )
        add_weights(parser)

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        """Overrides LightningCLI: the help also lists the commands that need no trainer."""
        super()._add_subcommands(parser, **kwargs)
        if len(self.subcommands()) == 1:
            return
        for name, make_parser in self.tools.items():
            tool = make_parser()
            parser._subcommands_action.add_subcommand(name, tool, help=tool.description)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Overrides LightningCLI: settings are settled with the checkpoint, by `resolve`."""
        self.config = self._parsed(parser)
        subcommand, own = self.config.subcommand, self.config[self.config.subcommand]
        path = own.get("ckpt_path")
        self.checkpoint, self.goes_on = None, False
        if subcommand != "validate" and own.weights is not None:
            raise UsageError(f"--weights: not for {subcommand}; --model.init_weights says which ones fit starts from")
        self.save_config_kwargs["overwrite"] = path == "last"  # a run that goes on has one in its folder
        if subcommand == "fit" and path == "last":
            self._go_on()
        elif path is not None and path not in FOUND_BY_LIGHTNING:
            self.checkpoint = open_or_offer(path, own.weights)
            self._check_resumable(subcommand)
        elif subcommand == "validate" and not self._names_a_model():
            raise UsageError("validate: no model is named; give --ckpt_path, the checkpoint to validate")
        self._settle(parser, None if self.goes_on else self.checkpoint)
        if subcommand == "fit":
            self.asked = asked_of(self.config.fit.trainer)

    def _settle(self, parser: LightningArgumentParser, checkpoint: Checkpoint | None) -> None:
        """Settles the settings with those of `--ckpt_path`, which a run that goes on as `last` has given anew."""
        subcommand = self.config.subcommand
        start = None if checkpoint else self.config[subcommand].model.init_from

        def given(beneath: RunConfig) -> Namespace:
            if checkpoint is not None:
                self.config = self._parsed(parser, beneath.as_dict())
            return self.config[subcommand]

        _, replaced = resolve(
            subcommand,
            given,
            None if checkpoint is None else origin_of(checkpoint),
            None if start is None else origin_of(open_checkpoint(start)),
            DEFAULT_TOKENIZER,
        )
        self._override(**replaced.as_dict())
        if checkpoint is not None and subcommand == "fit":
            self._check_end()
        elif checkpoint is not None:  # outside of fit Lightning loads one set of weights, from a file, with callbacks
            if checkpoint.weights is not None:
                notice(which_weights(checkpoint.path, checkpoint.weights, "--weights "))
            self.config[subcommand].ckpt_path = None

    def _check_resumable(self, subcommand: str) -> None:
        path = self.checkpoint.path
        if subcommand == "fit" and not self.checkpoint.resumable:
            raise UsageError(
                f"--ckpt_path {path}: no training to go on with is in it; start from its weights by "
                f"--model.init_from {path}"
            )

    def _names_a_model(self) -> bool:
        model = self.config[self.config.subcommand].model
        return any(model[key] is not None for key in ("preset", "hidden_size", "init_from"))

    def _go_on(self) -> None:
        """`fit --ckpt_path last`: the command is that of the interrupted run, so all its settings are given."""
        trainer = self.config.fit.trainer
        self.checkpoint = last_checkpoint(trainer)
        if self.checkpoint is None:
            notice("--ckpt_path last: there is no checkpoint yet, training starts from the beginning")
            self.config.fit.ckpt_path = None
            return
        limit, end = limit_reached(self.checkpoint, trainer), ended_by_itself(self.checkpoint, trainer)
        if limit is not None:
            done = f"has done all {limit.wanted} {limit.unit}, nothing is left"
            notice(f"--ckpt_path last: {self.checkpoint.path} {done}")
            raise SystemExit(0)
        if end is not None:
            notice(
                f"--ckpt_path last: the run of {self.checkpoint.path} has ended by itself ({end.reason}), nothing is "
                "left; with another limit, or other settings of its callbacks, it goes on"
            )
            raise SystemExit(0)
        self.goes_on = True
        self.save_config_kwargs["given"] = {"ckpt_path": None, "trainer.logger": trainer.logger}
        self.config.fit.ckpt_path = str(self.checkpoint.path)
        self._override(trainer=same_logs(trainer, self.checkpoint))

    def _parsed(self, parser: LightningArgumentParser, settings: dict[str, Any] | None = None) -> Namespace:
        """The command line, or in Python the dict or Namespace in its place, which override `settings`; its callbacks
        are settled."""
        if isinstance(self.args, dict | Namespace):
            parser.asked = [name for name in self.subcommands() if name in self.args]
            base = None if settings is None else parser.parse_object({self.config.subcommand: deepcopy(settings)})
            config = parser.parse_object(deepcopy(self.args), base)  # jsonargparse changes lists in place
        else:
            args = list(self.args)
            if settings is not None:
                after = args.index(self.config.subcommand) + 1
                args[after:after] = ["--config", json.dumps(settings)]
            config = parser.parse_args(args)
        settle_callbacks(config[config.subcommand].trainer)
        return config

    def _check_end(self) -> None:
        """Raises UsageError where no training is left to do from the checkpoint on."""
        trainer = self.config.fit.trainer
        limit, end = limit_reached(self.checkpoint, trainer), ended_by_itself(self.checkpoint, trainer)
        if limit is not None:
            raise UsageError(
                f"trainer.max_{limit.unit}={limit.wanted}: the checkpoint has done {limit.done} {limit.unit}; give a "
                "larger number"
            )
        if end is not None and self.checkpoint.steps == end.steps:  # else its last steps can be done again
            raise UsageError(
                f"--ckpt_path {self.checkpoint.path}: its run has ended by itself ({end.reason}); give another limit, "
                "or other settings of its callbacks"
            )

    def _parse_ckpt_path(self) -> None:
        """LightningCLI's own way of taking settings from a checkpoint, which `parse_arguments` replaces."""

    def _override(self, **sections: dict[str, Any]) -> None:
        self.config = self.parser.parse_object({self.config.subcommand: sections}, self.config)

    def before_instantiate_classes(self) -> None:
        use_plugins(self._get(self.config, "plugins"))
        if self.checkpoint is not None:
            model = self._get(self.config, "model")
            refuse_contradictions(self.checkpoint, model)
            if self.subcommand == "fit":
                refuse_another_optimizer(self.checkpoint, model.optimizer)
        trainer = self._get(self.config, "trainer")
        if self.subcommand != "prepare":
            refuse_intervals_of_zero(trainer)
            check_gpu(trainer.accelerator)
            check_launch(trainer)
            settle_precision(trainer, list(_flags(self.args, self.subcommand)))
        leave_out_unwritable(trainer)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        asked = list(self._get(self.config_init, "trainer").callbacks or [])  # Lightning adds its own to this list
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except Exception as error:  # its arguments are the user's own
            raise refusal_of_trainer(error) from error
        check_callbacks(trainer)
        show_size(trainer, asked)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:  # no plugin was asked for
            trainer.strategy.checkpoint_io = WholeFiles()
        if self.subcommand == "fit" and self.checkpoint is not None:
            check_reads(trainer, self.checkpoint.path)
        if self.goes_on:
            take_up_logs(trainer, self.checkpoint)
        return trainer

    def fit(self, model: LanguageModel, **options: Any) -> None:
        """Overrides the trainer's: in folders that no other run has."""
        source = self.checkpoint.path if self.checkpoint else None
        with taken_folders(self.trainer, goes_on=self.save_config_kwargs["overwrite"], source=source):
            self.trainer.fit(model, **options)
            write_finished(self.trainer, self.asked)

    def validate(self, model: LanguageModel, datamodule: TextData, **options: Any) -> None:
        """Overrides the trainer's: with `--domains`, once a domain."""
        domains = self._get(self.config, "domains")
        if not domains:
            self.trainer.validate(model, datamodule=datamodule, **options)
            return
        rows = []
        for name, source in domains.items():
            data = TextData(**{**self._get(self.config, "data"), "source": source, "dir": None, "mix": None})
            (metrics,) = self.trainer.validate(model, datamodule=data, **{**options, "verbose": False})
            rows.append([name, *(f"{metrics.get(f'val/{metric}', math.nan):.6g}" for metric in DOMAIN_METRICS)])
        print(table(["domain", *(metric.replace("_", " ") for metric in DOMAIN_METRICS)], rows))

    def instantiate_classes(self) -> None:
        """For `prepare` the data alone: the config's model and trainer may need what this machine lacks."""
        if self.subcommand != "prepare":
            return self._instantiate()
        self.config_init = self.config
        self.model, self.datamodule = None, TextData(**self._get(self.config, "data"))
        self.trainer = RoutedTrainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)

    def _add_instantiators(self) -> None:
        super()._add_instantiators()
        self.constructors = Constructors(self._get(self.config, "trainer"))
        self.parser.add_instantiator(self.constructors, object)  # after those of model and data

    def _instantiate(self) -> None:
        try:
            super().instantiate_classes()
        except Exception as error:
            if self.constructors.refusal is not None:
                raise self.constructors.refusal from error
            raise


def run(args: ArgsType, tools: Mapping[str, Callable[[], ArgumentParser]] = EMPTY) -> None:
    """Runs fit, validate or prepare; arguments as those of `RoutedCLI`.

    Raises:
        UsageError, DataError: bad input.
        TrainingError: the run fails.
    """
    try:
        RoutedCLI(args, tools)
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None or refusal is error:
            raise
        raise refusal from error


def _flags(args: Any, prefix: str) -> Iterator[str]:
    """What is said on a command line, as it is; of settings in its place, in Python, the names of the options."""
    if not isinstance(args, dict | Namespace):
        yield from args
        return
    for key, value in (args if isinstance(args, dict) else args.as_dict()).items():
        inner = [f"{key}.{flag[2:]}" for flag in _flags(value, "")] if isinstance(value, dict) else [key]
        yield from (f"--{flag.removeprefix(f'{prefix}.')}" for flag in inner)
