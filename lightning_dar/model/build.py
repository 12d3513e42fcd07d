"""A transformer from its settings: the one place where architecture and strategy meet by name."""

from dataclasses import replace

from lightning_dar.model.attention import Attention
from lightning_dar.model.config import MLPConfig, TransformerConfig
from lightning_dar.model.layer import Sublayer
from lightning_dar.model.mlp import mlp_class
from lightning_dar.model.transformer import Transformer
from lightning_dar.options import options_of, with_defaults
from lightning_dar.residual import Residual, ResidualConfig, Shape, build_residual

GIVEN = {"sizes", "pre_norm"}
"""Arguments of an MLP's `__init__` that are no options."""


def build_transformer(config: TransformerConfig, residual: ResidualConfig, plugin: str | None = None) -> Transformer:
    """A transformer with the named strategy, initialised from the global random state.

    Args:
        config: the architecture.
        residual: strategy name and options.
        plugin: the module that registered the strategy where a checkpoint was written, for the error.

    Raises:
        UsageError: sizes, strategy or options that cannot work.
    """
    model = Transformer(replace(config, mlp=checked_mlp(config.mlp)), build_strategy(config, residual, plugin))
    model.init_weights()
    return model


def build_strategy(config: TransformerConfig, residual: ResidualConfig, plugin: str | None = None) -> Residual:
    """The strategy that wires such a network, not initialised yet; raises what `build_transformer` raises."""
    shape = Shape(num_layers=config.num_layers, hidden_size=config.hidden_size, eps=config.norm_eps)
    return build_residual(residual, shape, plugin)


def checked_mlp(mlp: MLPConfig, plugin: str | None = None) -> MLPConfig:
    """The MLP's options as their declared types, every default spelled out.

    Args:
        mlp: kind and options.
        plugin: the module that a checkpoint says registered the kind, for the error.

    Raises:
        UsageError: an unknown kind or option, or an option of the wrong type.
    """
    cls = mlp_class(mlp.kind, plugin)
    options = options_of(cls, mlp.options, "model.mlp.options", f"MLP kind '{mlp.kind}'", GIVEN)
    spelled_out = with_defaults(cls, options)
    return replace(mlp, options={name: value for name, value in spelled_out.items() if name not in GIVEN})


def sublayer_classes(config: TransformerConfig) -> list[type[Sublayer]]:
    """The class of the sublayer at each site."""
    return [Attention, mlp_class(config.mlp.kind)] * config.num_layers
