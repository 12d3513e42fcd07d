"""The `fla` backend: the read of flash-linear-attention, an optional package, on CUDA."""

from __future__ import annotations

from functools import reduce
from importlib.util import find_spec

import torch
from torch import Tensor

from lightning_dar.errors import UsageError
from lightning_dar.ops.history import Read, SourceList


class Fla(SourceList):
    """Reads by `fla.ops.attnres.fused_attnres`."""

    name = "fla"

    @classmethod
    def why_not(cls) -> str | None:
        if find_spec("fla") is None:
            return "needs the package flash-linear-attention, which is not installed"
        return None if torch.cuda.is_available() else "needs a CUDA GPU and none was found; use two_phase"

    def read(self, read: Read) -> Tensor:
        try:  # transformers asks for every package that code it loads imports outside of a try
            from fla.ops.attnres import fused_attnres
        except ImportError as error:
            raise UsageError(
                f"model.residual.depth_read: fla cannot be imported ({error}); install flash-linear-attention"
            ) from error

        sources = read.sees(self.written)
        dtype = reduce(torch.promote_types, (source.dtype for source in sources))  # the kernel takes one
        values = [source.to(dtype) for source in sources]
        return read.added(fused_attnres(self.query[read.row], values, self.gain[read.row], rms_eps=self.eps))
