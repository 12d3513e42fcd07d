"""Residual strategies: one file each, found by name."""

from lightning_dar.residual.base import Residual, Shape
from lightning_dar.residual.registry import (
    ResidualConfig,
    available_residuals,
    build_residual,
    load_plugins,
    register_residual,
)

# Importing a strategy registers it; the order is the order in which they are listed.
from lightning_dar.residual import standard, attnres, delta_sublayer, delta_block  # noqa: E402, F401, I001
from lightning_dar.residual import cumulative_additive, cumulative_replacement  # noqa: E402, F401, I001

__all__ = [
    "Residual",
    "ResidualConfig",
    "Shape",
    "available_residuals",
    "build_residual",
    "load_plugins",
    "register_residual",
]
