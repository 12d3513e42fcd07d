"""Transformers whose residual connections route: Delta Attention Residuals and their relatives."""

from lightning_dar.checkpoint.load import load_model
from lightning_dar.model import Transformer, TransformerConfig
from lightning_dar.residual import Residual, ResidualConfig, Shape, available_residuals, register_residual
from lightning_dar.version import __version__

__all__ = [
    "Residual",
    "ResidualConfig",
    "Shape",
    "Transformer",
    "TransformerConfig",
    "__version__",
    "available_residuals",
    "load_model",
    "register_residual",
]
