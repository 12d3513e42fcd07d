"""Residual strategies: one file each, found by name."""

# Importing a strategy registers it.
from lightning_dar.residual import (
    attnres,
    cumulative_additive,
    cumulative_replacement,
    delta_block,
    delta_sublayer,
    standard,
)
from lightning_dar.residual.base import DepthRouting, Residual, Shape
from lightning_dar.residual.build import build_residual
from lightning_dar.residual.registry import ResidualConfig, available_residuals, load_plugins, register_residual
from lightning_dar.residual.routed import AdditiveResidual, RoutedResidual

__all__ = [
    "AdditiveResidual",
    "DepthRouting",
    "Residual",
    "ResidualConfig",
    "RoutedResidual",
    "Shape",
    "available_residuals",
    "build_residual",
    "load_plugins",
    "register_residual",
]
