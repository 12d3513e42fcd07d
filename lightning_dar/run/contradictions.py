"""Options that ask for something else than the checkpoint that they are given with."""

from dataclasses import asdict

from jsonargparse import Namespace

from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.errors import UsageError
from lightning_dar.model import MLPConfig
from lightning_dar.model.build import checked_mlp
from lightning_dar.residual import ResidualConfig
from lightning_dar.residual.build import checked_options
from lightning_dar.residual.registry import residual_class
from lightning_dar.run.settings import MODEL_KEY
from lightning_dar.training.optimizer import OptimizerConfig

IN_THE_OPTIMIZER = ("name", "lr", "routing_lr", "weight_decay", "decay", "betas", "eps", "momentum")
"""Restored with its state."""


def refuse_contradictions(checkpoint: Checkpoint, model: Namespace) -> None:
    """Raises UsageError where an option asks for another network than the checkpoint's."""
    description = checkpoint.description
    saved = description["residual"]
    cls = residual_class(saved["name"], description["plugin"])
    mlp = checked_mlp(checkpoint.config.mlp, description.get("mlp_plugin"))
    has = description["architecture"] | {"mlp": asdict(mlp), "residual.name": saved["name"]}
    asked = {key: model[key] for key in (*description["architecture"], "mlp")}
    if asked["mlp"] is not None:
        asked["mlp"] = asdict(checked_mlp(MLPConfig(**vars(model.mlp))))
    if model.init_from is None or not _is_unset(model.residual):
        asked["residual.name"] = model.residual.name
    if model.residual.name == saved["name"]:
        for values, options in ((asked, model.residual.options), (has, saved["options"])):
            checked = checked_options(ResidualConfig(name=saved["name"], options=options), cls)
            values |= {f"residual.options.{key}": value for key, value in checked.items()}
    for key, value in asked.items():
        value = value.as_dict() if isinstance(value, Namespace) else value
        if value is not None and value != has.get(key):
            raise UsageError(f"model.{key}={value}: the checkpoint has {has.get(key)}; leave it unset")


def _is_unset(residual: Namespace) -> bool:
    """Whether nothing but the default is asked for: a run that starts from other weights has their strategy then."""
    return residual.name == ResidualConfig().name and not residual.options


def refuse_another_optimizer(checkpoint: Checkpoint, asked: Namespace) -> None:
    """Raises UsageError for what a resumed optimizer would take from the checkpoint without a word."""
    saved = {"name": OptimizerConfig.name, **checkpoint.content[MODEL_KEY].get("optimizer", {})}
    for key in (key for key in IN_THE_OPTIMIZER if key in saved):
        value, has = (list(each) if isinstance(each, tuple) else each for each in (asked[key], saved[key]))
        if value != has:
            raise UsageError(
                f"model.optimizer.{key}={value}: the optimizer in the checkpoint has {has} and goes on with it; "
                f"leave it so, or start anew from the weights by --model.init_from {checkpoint.path}"
            )


def refuse_intervals_of_zero(trainer: Namespace) -> None:
    """Raises UsageError where Lightning would divide by zero."""
    for key in ("accumulate_grad_batches", "val_check_interval", "check_val_every_n_epoch"):
        value = trainer[key]
        if isinstance(value, int | float) and value <= 0:
            raise UsageError(f"trainer.{key}={value}: must be above 0")
