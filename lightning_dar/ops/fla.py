"""The `fla` backend: the read of flash-linear-attention, an optional package, on CUDA."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from lightning_dar.ops.history import ReferenceHistory, add_read


class FlaHistory(ReferenceHistory):
    """Sources by reference, read by `fla.ops.attnres.fused_attnres`."""

    def _read(self, sources: tuple[Tensor, ...], row: int, stream: Tensor | None, gate: Tensor | None) -> Tensor:
        from fla.ops.attnres import fused_attnres

        dtype = reduce(torch.promote_types, (source.dtype for source in sources))  # the kernel takes one
        values = [source.to(dtype) for source in sources]
        read = fused_attnres(self.query[row], values, self.gain[row], rms_eps=self.eps)
        return add_read(read, stream, gate)
