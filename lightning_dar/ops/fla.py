"""The `fla` backend: the read of flash-linear-attention, an optional package, on CUDA."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from lightning_dar.errors import UsageError
from lightning_dar.ops.history import ReferenceHistory, add_read


class FlaHistory(ReferenceHistory):
    """Sources by reference, read by `fla.ops.attnres.fused_attnres`."""

    def _read(self, sources: tuple[Tensor, ...], row: int, stream: Tensor | None, gate: Tensor | None) -> Tensor:
        try:  # transformers asks for every package that code it loads imports outside of a try
            from fla.ops.attnres import fused_attnres
        except ImportError as error:
            raise UsageError(
                f"model.residual.depth_read: fla cannot be imported ({error}); install flash-linear-attention"
            ) from error

        dtype = reduce(torch.promote_types, (source.dtype for source in sources))  # the kernel takes one
        values = [source.to(dtype) for source in sources]
        read = fused_attnres(self.query[row], values, self.gain[row], rms_eps=self.eps)
        return add_read(read, stream, gate)
