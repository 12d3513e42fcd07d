"""Depth reads: softmax attention over the earlier sources of one forward pass, per token."""

from lightning_dar.ops.backends import DepthRead, open_history, require_depth_read
from lightning_dar.ops.definition import depth_read, depth_weights
from lightning_dar.ops.history import History

__all__ = ["DepthRead", "History", "depth_read", "depth_weights", "open_history", "require_depth_read"]
