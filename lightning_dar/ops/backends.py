"""What computes a depth read, by name.

`auto` is `two_phase` on every device: it is the fastest of ours for sublayer sources, level with `fused` for block
sources, and holds the least. It never picks `fla`, an optional package whose rounding is not ours.
"""

from __future__ import annotations

import logging
from functools import cache, reduce
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from lightning_dar.errors import UsageError
from lightning_dar.ops.fused import Fused
from lightning_dar.ops.history import Backend, History, Naive, Read, SourceList
from lightning_dar.ops.two_phase.backend import TwoPhase


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


DepthRead = Literal["auto", "naive", "fused", "two_phase", "fla"]

BACKENDS: dict[str, type[Backend]] = {
    "auto": TwoPhase,
    "naive": Naive,
    "fused": Fused,
    "two_phase": TwoPhase,
    "fla": Fla,
}
_FIELD = "model.residual.depth_read"
_log = logging.getLogger(__name__)


def require_depth_read(backend: str) -> None:
    """Raises UsageError where the backend is unknown or cannot run, with the reason."""
    if backend not in BACKENDS:
        raise UsageError(f"{_FIELD}: unknown backend '{backend}'; known: {', '.join(BACKENDS)}")
    reason = BACKENDS[backend].why_not()
    if reason is not None:
        raise UsageError(f"{_FIELD}: {backend} {reason}")


def open_history(
    query: Tensor,
    gain: Tensor,
    eps: float,
    *,
    backend: DepthRead = "auto",
    max_sources: int | None = None,
) -> History:
    """The empty history of one forward pass.

    Args:
        query: [rows, D], the queries in the order in which they read.
        gain: [rows, D], the key norms' gains.
        eps: epsilon of the key norms.
        backend: what reads; every backend computes the same.
        max_sources: how many sources will be appended at most, for the buffer of `two_phase`; default: one per row.

    Raises:
        UsageError: the backend cannot run here.
    """
    require_depth_read(backend)
    chosen = BACKENDS[backend]
    if not torch.compiler.is_compiling():
        _log_choice(backend, chosen.name)
    return History(chosen(query, gain, eps, max_sources or len(query)))


@cache
def _log_choice(backend: str, chosen: str) -> None:
    _log.info("depth reads: %s", chosen if backend == chosen else f"{chosen} ({_FIELD} is {backend})")
