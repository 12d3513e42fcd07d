"""Which code reads the depth history: the one place that knows the backends by name.

`auto` is `two_phase` on every device: it is the fastest of ours for sublayer sources, level with `fused` for block
sources, and holds the least. It never picks `fla`, an optional package whose rounding is not ours.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor

from lightning_dar.errors import UsageError
from lightning_dar.ops.fla import FlaHistory
from lightning_dar.ops.fused import FusedHistory
from lightning_dar.ops.history import History
from lightning_dar.ops.reference import NaiveHistory
from lightning_dar.ops.two_phase import TwoPhaseHistory

DepthRead = Literal["auto", "naive", "fused", "two_phase", "fla"]

_FIELD = "model.residual.depth_read"
_BY_REFERENCE = {"naive": NaiveHistory, "fused": FusedHistory, "fla": FlaHistory}
_log = logging.getLogger(__name__)


def require_depth_read(backend: str) -> None:
    """Raises UsageError where the backend is unknown or cannot run, with the reason."""
    if backend not in get_args(DepthRead):
        raise UsageError(f"{_FIELD}: unknown backend '{backend}'; known: {', '.join(get_args(DepthRead))}")
    if backend != "fla":
        return
    if find_spec("fla") is None:
        raise UsageError(f"{_FIELD}: fla needs the package flash-linear-attention, which is not installed")
    if not torch.cuda.is_available():
        raise UsageError(f"{_FIELD}: fla needs a CUDA GPU and none was found; use two_phase")


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
        max_sources: how many sources will be appended at most, for the buffer of `two_phase`; default: one a row.

    Raises:
        UsageError: the backend cannot run here.
    """
    require_depth_read(backend)
    chosen = "two_phase" if backend == "auto" else backend
    if not torch.compiler.is_compiling():
        _log_choice(backend, chosen)
    if chosen == "two_phase":
        return TwoPhaseHistory(query, gain, eps, max_sources=max_sources or len(query))
    return _BY_REFERENCE[chosen](query, gain, eps)


@cache
def _log_choice(backend: str, chosen: str) -> None:
    _log.info("depth reads: %s", chosen if backend == chosen else f"{chosen} ({_FIELD} is {backend})")
