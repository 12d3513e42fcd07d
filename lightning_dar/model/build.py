"""A transformer from its settings: the one place where architecture and strategy meet by name."""

from dataclasses import replace

from lightning_dar.model.attention import Attention
from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.mlp_kinds import mlp_class
from lightning_dar.model.sublayer import Sublayer
from lightning_dar.model.transformer import Transformer
from lightning_dar.options import options_of
from lightning_dar.residual import Residual, ResidualConfig, Shape, build_residual


def build_transformer(config: TransformerConfig, residual: ResidualConfig, plugin: str | None = None) -> Transformer:
    """A transformer with the named strategy, initialised from the global random state.

    Args:
        config: the architecture.
        residual: strategy name and options.
        plugin: the module that registered the strategy where a checkpoint was written, for the error.

    Raises:
        UsageError: sizes, strategy or options that cannot work.
    """
    model = Transformer(with_checked_mlp(config), build_strategy(config, residual, plugin))
    model.init_weights()
    return model


def build_strategy(config: TransformerConfig, residual: ResidualConfig, plugin: str | None = None) -> Residual:
    """The strategy that wires such a network, not initialised yet; raises what `build_transformer` raises."""
    shape = Shape(num_layers=config.num_layers, hidden_size=config.hidden_size, eps=config.norm_eps)
    return build_residual(residual, shape, plugin)


def with_checked_mlp(config: TransformerConfig) -> TransformerConfig:
    """The MLP's options as their declared types. Raises UsageError for an unknown kind or option, or a wrong value."""
    kind, options = config.mlp.kind, config.mlp.options
    checked = options_of(mlp_class(kind), options, "model.mlp.options", f"MLP kind '{kind}'", {"sizes", "pre_norm"})
    return replace(config, mlp=replace(config.mlp, options=checked))


def sublayer_classes(config: TransformerConfig) -> list[type[Sublayer]]:
    """By site, the class of the sublayer."""
    return [Attention, mlp_class(config.mlp.kind)] * config.num_layers
