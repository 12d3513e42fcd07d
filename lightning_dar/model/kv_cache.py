"""Keys and values of the tokens seen so far, so that each further token costs one step.

Only attention looks back over tokens. The depth read is per token, so no residual strategy needs a cache.
"""

import torch
from torch import Tensor


class KVCache:
    """State of one generation, handed along with each forward and never kept on the model."""

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> keys, values [B, capacity, K, head_dim]
        self._lengths: dict[int, int] = {}

    @property
    def length(self) -> int:
        """Tokens of the finished forwards; the position of the next token."""
        return min(self._lengths.values(), default=0)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds [B, T, K, head_dim] of a layer; returns all keys and values of it, [B, length + T, K, head_dim]."""
        start = self._lengths.get(layer, 0)
        end = start + k.shape[1]
        if layer not in self._buffers or end > self._buffers[layer][0].shape[1]:
            self._buffers[layer] = self._grown(layer, k, end), self._grown(layer, v, end, index=1)
        self._lengths[layer] = end
        for buffer, new in zip(self._buffers[layer], (k, v), strict=True):
            buffer[:, start:end] = new
        keys, values = self._buffers[layer]
        return keys[:, :end], values[:, :end]

    def _grown(self, layer: int, like: Tensor, length: int, index: int = 0) -> Tensor:
        """A buffer with room for twice the tokens, so that all copies together stay linear in the length."""
        batch, _, *rest = like.shape
        buffer = torch.empty(batch, 2 * length, *rest, dtype=like.dtype, device=like.device)
        start = self._lengths.get(layer, 0)
        if start:
            buffer[:, :start] = self._buffers[layer][index][:, :start]
        return buffer
