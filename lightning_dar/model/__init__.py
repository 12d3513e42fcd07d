"""The decoder: architecture only. No training, logging or distributed code."""

from lightning_dar.model.build import build_strategy, build_transformer
from lightning_dar.model.config import RopeScaling, TransformerConfig, resolve_config
from lightning_dar.model.transformer import Transformer

__all__ = [
    "RopeScaling",
    "Transformer",
    "TransformerConfig",
    "build_strategy",
    "build_transformer",
    "resolve_config",
]
