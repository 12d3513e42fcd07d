"""Which code reads the depth history: the one place that knows the backends by name.

`auto` is `two_phase` on every device: it is the fastest of ours for sublayer sources, level with `fused` for block
sources, and holds the least. It never picks `fla`, an optional package whose rounding is not ours.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from lightning_dar.errors import UsageError
from lightning_dar.ops.fla import Fla
from lightning_dar.ops.fused import Fused
from lightning_dar.ops.history import Backend, History
from lightning_dar.ops.naive import Naive
from lightning_dar.ops.two_phase.backend import TwoPhase

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
