"""The decoder: architecture only. No training, logging or distributed code."""

from lightning_dar.model.build import build_strategy, build_transformer, sublayer_classes
from lightning_dar.model.config import MLPConfig, RopeScaling, TransformerConfig, resolve_config
from lightning_dar.model.layer import Sublayer
from lightning_dar.model.mlp import (
    MLP,  # importing a kind registers it
    available_mlps,
    register_mlp,
)
from lightning_dar.model.transformer import Transformer

__all__ = [
    "MLP",
    "MLPConfig",
    "RopeScaling",
    "Sublayer",
    "Transformer",
    "TransformerConfig",
    "available_mlps",
    "build_strategy",
    "build_transformer",
    "register_mlp",
    "resolve_config",
    "sublayer_classes",
]
