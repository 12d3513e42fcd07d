"""Which code reads the depth history: the one place that knows the backends by name.

`auto` is `two_phase` on every device. It never picks an optional package.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from lightning_dar.ops.fused import FusedHistory
from lightning_dar.ops.history import History
from lightning_dar.ops.reference import NaiveHistory
from lightning_dar.ops.two_phase import TwoPhaseHistory

DepthRead = Literal["auto", "naive", "fused", "two_phase", "fla"]


def open_history(
    query: Tensor, gain: Tensor, eps: float, *, backend: DepthRead = "auto", max_sources: int | None = None
) -> History:
    """An empty history for queries and gains [rows, D].

    Args:
        query: [rows, D].
        gain: [rows, D], the key norms' gains.
        eps: epsilon of the key norms.
        backend: how it is read.
        max_sources: how many sources will be appended at most; default: one a row.
    """
    if backend == "naive":
        return NaiveHistory(query, gain, eps)
    if backend == "fused":
        return FusedHistory(query, gain, eps)
    return TwoPhaseHistory(query, gain, eps, max_sources=max_sources or len(query))
