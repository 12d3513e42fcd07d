"""The `naive` backend: the definition itself, the sources stacked at every read."""

from __future__ import annotations

from torch import Tensor

from lightning_dar.ops.definition import depth_read
from lightning_dar.ops.history import Read, SourceList


class Naive(SourceList):
    """Slow, O(S^2) bytes held for backward, differentiable any number of times."""

    name = "naive"

    def read(self, read: Read) -> Tensor:
        sources = read.sees(self.written)
        return read.added(depth_read(sources, self.query[read.row], self.gain[read.row], self.eps))
