"""The two-phase read, as plain tensor functions: M = B*T tokens, chunks of C consecutive rows of the queries.

Scores: the logits of a source for every later row are one thin product, l_is = r_i (v_i . u_s), with
r_i = rsqrt(mean(v_i^2) + eps) and u_s = query_s * gain_s.

Phase one, when a chunk starts: its C rows read the finished sources in one batched product,

    partial [M, C, D] = softmax_n(logits [M, n, C])^T x V [M, n, D]

What a row does with it is in `row.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_dar.ops.scores import softmax_and_log_sum

CHUNK_ROWS = 12

BLOCK_BYTES = 1 << 28
"""Phase one takes tokens in blocks of about this size, so that a copy in fp32 stays small."""


class Sources(NamedTuple):
    """What one forward pass has written, token by token, and the queries that read it."""

    values: Tensor  # [M, capacity, D], compute dtype
    inverse_rms: Tensor  # [M, capacity], at least fp32
    queries: Tensor  # U = query * gain [rows, D], at least fp32


@dataclass
class Chunk:
    """The rows start .. stop-1, and what they have in common."""

    start: int
    stop: int
    finished: int  # sources written before row `start`
    partial: Tensor | None = None  # [M, C, D]; None where no source is finished
    reads: tuple[Tensor, ...] = ()  # its rows, [M, D] each
    log_sums: tuple[Tensor, ...] = ()  # log-sum-exp of phase one, [M, 1] each

    def phase_one(self, row: int) -> tuple[Tensor | None, Tensor | None]:
        """Of one row: [M, D], and its log-sum-exp [M, 1]."""
        if self.partial is None:
            return None, None
        return self.reads[row - self.start], self.log_sums[row - self.start]


def chunk_start(row: int) -> int:
    """The first row of the chunk of `row`; -CHUNK_ROWS for -1."""
    return row - row % CHUNK_ROWS


def keeps_phase_one(capacity: int, rows: int, source_bytes: int, read_bytes: int) -> bool:
    """Whether it stays until the backward, for `rows` reads of up to `capacity` sources: where it weighs no more than
    they do, in bytes of any one unit. Else it is done again."""
    return capacity + 1 >= rows and source_bytes == read_bytes


def enter_logits(logits: Tensor, sources: Sources, slot: int, after: int) -> None:
    """Fills [M, capacity, rows] for one source, at the rows that follow `after`; the others stay as they are."""
    queries = sources.queries[after + 1 :]
    scores = sources.values[:, slot].to(queries.dtype) @ queries.T
    torch.mul(scores, sources.inverse_rms[:, slot, None], out=logits[:, slot, after + 1 :])


def all_logits(sources: Sources, after: list[int]) -> Tensor:
    """[M, len(after), rows] of all sources written; `after` as in `open_chunk`."""
    logits = sources.queries.new_empty(len(sources.values), len(after), len(sources.queries))
    for slot, row in enumerate(after):
        enter_logits(logits, sources, slot, row)
    return logits


def open_chunk(sources: Sources, logits: Tensor, after: list[int], start: int, before: Chunk | None = None) -> Chunk:
    """Phase one of the chunk that begins with row `start`.

    Args:
        sources: values, norms and queries.
        logits: [M, capacity, rows].
        after: by source, the row after which it was written.
        start: first row of the chunk.
        before: a chunk of no use any more, whose memory is taken.
    """
    stop = min(start + CHUNK_ROWS, len(sources.queries))
    finished = bisect_left(after, start)
    if finished == 0:
        return Chunk(start, stop, 0)

    weights, log_sums = softmax_and_log_sum(logits[:, :finished, start:stop])
    weights = weights.transpose(1, 2)
    shape = (len(weights), stop - start, sources.values.shape[-1])
    reuse = before is not None and before.partial is not None and before.partial.shape == shape
    partial = before.partial if reuse else weights.new_empty(shape)
    block = max(1, BLOCK_BYTES // (finished * shape[-1] * partial.element_size()))
    for tokens in (slice(first, first + block) for first in range(0, len(partial), block)):
        torch.bmm(weights[tokens], sources.values[tokens, :finished].to(partial.dtype), out=partial[tokens])
    return Chunk(start, stop, finished, partial, partial.unbind(1), log_sums.split(1, 1))
