"""A transformer from its settings: the one place where architecture and strategy meet by name."""

from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.transformer import Transformer
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
    model = Transformer(config, build_strategy(config, residual, plugin))
    model.init_weights()
    return model


def build_strategy(config: TransformerConfig, residual: ResidualConfig, plugin: str | None = None) -> Residual:
    """The strategy that wires such a network, not initialised yet; raises what `build_transformer` raises."""
    shape = Shape(num_layers=config.num_layers, hidden_size=config.hidden_size, eps=config.norm_eps)
    return build_residual(residual, shape, plugin)
