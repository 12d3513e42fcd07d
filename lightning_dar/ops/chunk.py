"""The two-phase read, as plain tensor functions: M = B*T tokens, chunks of C consecutive rows of the queries.

Scores: the logits of a source for every later row are one thin product, l_is = r_i (v_i . u_s), with
r_i = rsqrt(mean(v_i^2) + eps) and u_s = query_s * gain_s.

Phase one, when a chunk starts: its C rows read the sources finished by then in one batched product,

    partial [M, C, D] = softmax_n(logits [M, n, C])^T x V [M, n, D]

Merge, at each row: `partial` counts as one source, whose logit is the log-sum-exp of phase one; the sources
written since are the others. With few finished sources phase one saves nothing, and the merge reads them all.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_dar.ops.scores import add_weighted

CHUNK_ROWS = 12
DIRECT_SOURCES = 4
"""Up to so many finished sources are read at each row: phase one would write and read as much."""

BLOCK_BYTES = 1 << 28
"""Phase one takes tokens in blocks of about this size, so that a copy in fp32 stays small."""


class Sources(NamedTuple):
    """What one forward pass has written, token by token, and the queries that read it."""

    values: Tensor  # [M, capacity, D], compute dtype
    inverse_rms: Tensor  # [M, capacity], at least fp32
    queries: Tensor  # U = query * gain [rows, D], at least fp32


class Scores:
    """Logits by source, [M, rows - 1 - after[i]] each: those of the rows that follow source i. For one pass."""

    def __init__(self, after: list[int]):
        self.after = after
        self._logits: dict[int, Tensor] = {}

    def of(self, sources: Sources, slot: int) -> Tensor:
        """Logits of one source for all rows that follow it."""
        if slot not in self._logits:
            queries = sources.queries[self.after[slot] + 1 :]
            scores = sources.values[:, slot].to(queries.dtype) @ queries.T
            self._logits[slot] = scores.mul_(sources.inverse_rms[:, slot, None])
        return self._logits[slot]

    def between(self, sources: Sources, slot: int, start: int, stop: int) -> Tensor:
        """[M, stop - start], the rows start .. stop-1."""
        first = self.after[slot] + 1
        return self.of(sources, slot)[:, start - first : stop - first]

    def forget(self, slot: int) -> None:
        self._logits.pop(slot, None)


@dataclass
class Chunk:
    """The rows start .. stop-1, and what they have in common."""

    start: int
    stop: int
    finished: int  # sources written before row `start`
    table: Tensor  # [M, C, n]: logit of `partial` if there is one, then of each source that the merge reads
    filled: int  # sources that `table` holds
    partial: Tensor | None  # [M, C, D]

    @property
    def first(self) -> int:
        """The first source that the merge reads."""
        return 0 if self.partial is None else self.finished

    def column(self, slot: int) -> int:
        """Where `table` has source `slot`."""
        return slot - self.first + (self.partial is not None)

    def fill(self, sources: Sources, scores: Scores, count: int) -> None:
        """Enters the sources up to `count`."""
        for slot in range(self.filled, count):
            row = max(self.start, scores.after[slot] + 1)
            self.table[:, row - self.start :, self.column(slot)] = scores.between(sources, slot, row, self.stop)
        self.filled = max(self.filled, count)


def chunk_start(row: int) -> int:
    """The first row of the chunk of `row`; -CHUNK_ROWS for -1."""
    return row - row % CHUNK_ROWS


def open_chunk(sources: Sources, scores: Scores, start: int, before: Chunk | None) -> Chunk:
    """Phase one of the chunk that begins with row `start`, in the memory of the one that was open before."""
    stop = min(start + CHUNK_ROWS, len(sources.queries))
    finished = bisect_left(scores.after, start)
    tokens, capacity, dim = sources.values.shape
    table = sources.queries.new_empty(tokens, stop - start, capacity + 1)
    if finished <= DIRECT_SOURCES:
        return Chunk(start, stop, finished, table, 0, None)

    logits = torch.stack([scores.between(sources, slot, start, stop) for slot in range(finished)], 1)
    table[:, :, 0] = logits.logsumexp(1)
    weights = logits.softmax(1).transpose(1, 2)
    shape = (tokens, stop - start, dim)
    reuse = before is not None and before.partial is not None and before.partial.shape == shape
    partial = before.partial if reuse else weights.new_empty(shape)
    block = max(1, BLOCK_BYTES // (finished * dim * partial.element_size()))
    for rows in (slice(first, first + block) for first in range(0, tokens, block)):
        torch.bmm(weights[rows], sources.values[rows, :finished].to(partial.dtype), out=partial[rows])
    return Chunk(start, stop, finished, table, finished, partial)


def merge(
    chunk: Chunk,
    sources: Sources,
    weights: Tensor,
    row: int,
    count: int,
    private: list[Tensor],
    stream: Tensor | None,
) -> Tensor:
    """stream + the weighted sum of what one row reads, [M, D].

    Args:
        chunk: the row's chunk.
        sources: values, norms and queries.
        weights: [M, n] of `partial` if there is one, the sources first .. count-1, and the private ones.
        row: row of the queries.
        count: sources that the row sees.
        private: values [M, D] outside the history.
        stream: [M, D] or None.
    """
    total, column = stream, chunk.column(chunk.finished if chunk.partial is not None else 0)
    if chunk.partial is not None:
        total = add_weighted(total, weights, chunk.partial[:, row - chunk.start, None])
    if count > chunk.first:
        values = sources.values[:, chunk.first : count].to(weights.dtype)
        taken = weights[:, column : column + values.shape[1]]
        if chunk.partial is not None and values.shape[1] > 1:
            total[:, None].baddbmm_(taken[:, None], values)
        else:
            total = add_weighted(total, taken, values)
    for i, value in enumerate(private, weights.shape[1] - len(private)):
        total = add_weighted(total, weights[:, i, None], value[:, None])
    assert total is not None
    return total
