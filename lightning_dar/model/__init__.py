"""The decoder: architecture only. No training, logging or distributed code."""

from lightning_dar.model.config import TransformerConfig, resolve_config
from lightning_dar.model.transformer import Transformer, build_transformer

__all__ = ["Transformer", "TransformerConfig", "build_transformer", "resolve_config"]
