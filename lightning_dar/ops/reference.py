"""The `naive` backend: the sources by reference, stacked at every read."""

from __future__ import annotations

from torch import Tensor

from lightning_dar.ops.history import ReferenceHistory, add_read
from lightning_dar.ops.naive import depth_read


class NaiveHistory(ReferenceHistory):
    """Stacks the sources at every read. Slow, O(S^2) bytes held for backward, differentiable any number of times."""

    def _read(self, sources: tuple[Tensor, ...], row: int, stream: Tensor | None, gate: Tensor | None) -> Tensor:
        return add_read(depth_read(sources, self.query[row], self.gain[row], self.eps), stream, gate)
