"""Backward of the two-phase read: what the rows of each chunk leave behind, and what sources take from it.

A row's backward only stores dout_s and e_s = dout_s . r_s. A source's own backward, which autograd runs after the
backward of every read that used it, collects over the rows s that follow it

    a_is = exp(l_is - lse_s) c_s            g_is = a_is (dout_s . v_i - e_s)
    dv_i = sum_s a_is dout_s + sum_s g_is r_i u_s - (r_i^2 / D) (sum_s g_is l_is) v_i
    du_s += sum_i g_is r_i v_i

once a chunk for all sources written during the chunk (`Group`), and one by one within it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_dar.ops.chunk import CHUNK_ROWS, Chunk, Sources


class ChunkGradient:
    """What the backward of a chunk's rows leaves for the sources."""

    def __init__(self, chunk: Chunk):
        self.chunk = chunk
        columns = chunk.stop - chunk.start
        tokens = len(chunk.logits)
        self.d_out: Tensor | None = None  # [M, C, D]
        self.mean = chunk.logits.new_zeros(tokens, columns)  # e_s
        self.log_sum = chunk.logits.new_full((tokens, columns), torch.inf)  # rows without backward weigh nothing
        self.gate: Tensor | None = None  # [C]
        self.missing = set(range(columns))

    def put(self, row: int, d_out: Tensor, mean: Tensor, log_sum: Tensor, gate: Tensor | None) -> None:
        """The backward of one row: d_out [M, D], e_s [M], log-sum-exp [M]."""
        column = row - self.chunk.start
        if self.d_out is None:
            self.d_out = d_out.new_empty(len(d_out), self.mean.shape[1], d_out.shape[-1])
        self.d_out[:, column] = d_out
        self.mean[:, column] = mean
        self.log_sum[:, column] = log_sum
        if column not in self.missing:
            raise RuntimeError(f"row {row} of the depth read's queries was read twice in one forward pass")
        self.missing.discard(column)
        if gate is not None:
            if self.gate is None:
                self.gate = self.mean.new_ones(self.mean.shape[1])
            self.gate[column] = gate

    def collect(self, values: Tensor, logits: Tensor, first: int, d_values: Tensor) -> Tensor:
        """Adds sum_s a_is dout_s to `d_values` [M, K, D], over the columns from `first`.

        Args:
            values: [M, K, D] sources.
            logits: [M, K, C - first].
            first: the first column that sees the sources.
            d_values: [M, K, D], added to in place.

        Returns:
            g [M, K, C - first].
        """
        assert self.d_out is not None
        for column in [column for column in self.missing if column >= first]:
            self.d_out[:, column] = 0
            self.missing.discard(column)
        d_out = self.d_out[:, first:].to(values.dtype)
        weights = logits.sub(self.log_sum[:, None, first:]).exp_()
        if self.gate is not None:
            weights *= self.gate[first:]
        d_values.baddbmm_(weights, d_out)
        mean = self.mean[:, None, first:].expand_as(weights)
        return torch.baddbmm(mean, values, d_out.transpose(1, 2), beta=-1).mul_(weights)


@dataclass
class Group:
    """The sources first .. stop-1, written during one chunk, and their gradient through all later chunks."""

    first: int
    stop: int
    d_values: Tensor  # [M, K, D]
    d_scores: Tensor | None  # g_is r_i [M, K, later rows]
    shrink: Tensor  # sum_s g_is l_is [M, K]


@dataclass
class Gradients:
    """One backward pass."""

    d_queries: Tensor  # dU [rows, D]
    chunks: dict[int, ChunkGradient] = field(default_factory=dict)  # by first row
    group: Group | None = None


def collect_group(
    first: int, stop: int, sources: Sources, later: Iterable[ChunkGradient | None]
) -> Group:
    """The gradient of the sources first .. stop-1 through the chunks that came later, in ascending order."""
    dtype = sources.queries.dtype
    values = sources.values[:, first:stop].to(dtype)
    inverse_rms = sources.inverse_rms[:, first:stop]
    d_values = torch.zeros_like(values, memory_format=torch.contiguous_format)
    shrink = torch.zeros_like(inverse_rms)
    d_scores = []
    for gradient in later:
        if gradient is None:  # none of its rows had a backward
            d_scores.append(values.new_zeros(*values.shape[:2], CHUNK_ROWS))
            continue
        logits = gradient.chunk.logits[:, first:stop]
        grad = gradient.collect(values, logits, 0, d_values)
        shrink += (grad * logits).sum(-1)
        d_scores.append(grad.mul_(inverse_rms[..., None]))
    return Group(first, stop, d_values, torch.cat(d_scores, -1) if d_scores else None, shrink)
