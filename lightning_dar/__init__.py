"""Transformers whose residual connections route: Delta Attention Residuals and their relatives."""

from lightning_dar.model import Transformer, TransformerConfig
from lightning_dar.residual import Residual, ResidualConfig, Shape, available_residuals, register_residual

__version__ = "0.1.0"

__all__ = [
    "Residual",
    "ResidualConfig",
    "Shape",
    "Transformer",
    "TransformerConfig",
    "available_residuals",
    "register_residual",
]
