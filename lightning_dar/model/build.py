"""A transformer from its settings: the one place where architecture and strategy meet by name."""

from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.transformer import Transformer
from lightning_dar.residual import ResidualConfig, Shape, build_residual


def build_transformer(config: TransformerConfig, residual: ResidualConfig, plugin: str | None = None) -> Transformer:
    """A transformer with the named strategy, initialised from the global random state.

    Args:
        config: the architecture.
        residual: strategy name and options.
        plugin: the module that registered the strategy where a checkpoint was written, for the error.

    Raises:
        UsageError: sizes, strategy or options that cannot work.
    """
    shape = Shape(num_layers=config.num_layers, hidden_size=config.hidden_size, eps=config.norm_eps)
    return Transformer(config, build_residual(residual, shape, plugin))
