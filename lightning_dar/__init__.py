"""Transformers whose residual connections route: Delta Attention Residuals and their relatives."""

from lightning_dar.checkpoint.load import load_model
from lightning_dar.model import Sublayer, Transformer, TransformerConfig, available_mlps, register_mlp
from lightning_dar.ops import History
from lightning_dar.residual import (
    AdditiveResidual,
    DepthRouting,
    Residual,
    ResidualConfig,
    RoutedResidual,
    Shape,
    available_residuals,
    register_residual,
)
from lightning_dar.version import __version__

__all__ = [
    "AdditiveResidual",
    "DepthRouting",
    "History",
    "Residual",
    "ResidualConfig",
    "RoutedResidual",
    "Shape",
    "Sublayer",
    "Transformer",
    "TransformerConfig",
    "__version__",
    "available_mlps",
    "available_residuals",
    "load_model",
    "register_mlp",
    "register_residual",
]
