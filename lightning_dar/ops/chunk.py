"""The two-phase read, as plain tensor functions: M = B*T tokens, chunks of C consecutive rows of the queries.

Phase one, when a chunk starts: its C rows read the sources finished by then in one batched product,

    logits [M, n, C] = inverse_rms [M, n] * (V [M, n, D] x U^T [D, C])     partial [M, C, D] = softmax_n^T x V

Merge, at each row: `partial` counts as one source, whose logit is the log-sum-exp of phase one; the sources
written since are the others. With few finished sources phase one saves nothing, and the merge reads them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

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


@dataclass
class Chunk:
    """The rows start .. stop-1 over the sources that were finished when row `start` came."""

    start: int
    stop: int
    finished: int
    logits: Tensor  # [M, finished, C]
    partial: Tensor | None  # [M, C, D], None where the merge reads the finished sources itself
    log_sum: Tensor | None  # [M, C], log-sum-exp of `logits`
    recent: list[Tensor] = field(default_factory=list)  # [M, C] logits of each source written since

    def logits_of(self, slot: int) -> Tensor:
        """[M, C]"""
        return self.logits[:, slot] if slot < self.finished else self.recent[slot - self.finished]

    def extend(self, sources: Sources, count: int) -> None:
        """Scores the sources up to `count` that have been written since the chunk started."""
        queries = sources.queries[self.start : self.stop]
        for slot in range(self.finished + len(self.recent), count):
            scores = sources.values[:, slot].to(queries.dtype) @ queries.T
            self.recent.append(scores.mul_(sources.inverse_rms[:, slot, None]))


def open_chunk(sources: Sources, start: int, finished: int) -> Chunk:
    """Phase one of the chunk that begins with row `start`."""
    stop = min(start + CHUNK_ROWS, len(sources.queries))
    queries = sources.queries[start:stop]
    tokens, _, dim = sources.values.shape
    logits = queries.new_empty(tokens, finished, len(queries))
    if finished <= DIRECT_SOURCES:
        for slot in range(finished):
            torch.mul(
                sources.values[:, slot].to(queries.dtype) @ queries.T,
                sources.inverse_rms[:, slot, None],
                out=logits[:, slot],
            )
        return Chunk(start, stop, finished, logits, None, None)

    partial = queries.new_empty(tokens, len(queries), dim)
    block = max(1, BLOCK_BYTES // (finished * dim * queries.element_size()))
    for rows in (slice(first, first + block) for first in range(0, tokens, block)):
        values = sources.values[rows, :finished].to(queries.dtype)
        scores = torch.bmm(values, queries.T.expand(len(values), -1, -1))
        torch.mul(scores, sources.inverse_rms[rows, :finished, None], out=logits[rows])
        torch.bmm(logits[rows].softmax(1).transpose(1, 2), values, out=partial[rows])
    return Chunk(start, stop, finished, logits, partial, logits.logsumexp(1))


def merge(
    chunk: Chunk,
    sources: Sources,
    row: int,
    count: int,
    private: list[tuple[Tensor, Tensor]],
    stream: Tensor | None = None,
    gate: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The read of one row.

    Args:
        chunk: the row's chunk, scored up to `count`.
        sources: values, norms and queries.
        row: row of the queries.
        count: sources that the row sees.
        private: (values [M, D], logits [M]) of sources outside the history.
        stream: [M, D], added to the read.
        gate: scalar, scales the read.

    Returns:
        stream + gate * r [M, D], and the log-sum-exp [M] of all logits.
    """
    column = row - chunk.start
    first = 0 if chunk.partial is None else chunk.finished
    logits = [] if chunk.log_sum is None else [chunk.log_sum[:, column]]
    logits += [chunk.logits_of(slot)[:, column] for slot in range(first, count)]
    logits += [logit for _, logit in private]
    table = torch.stack(logits, dim=-1)
    log_sum = table.logsumexp(-1)
    weights = table.sub_(log_sum[:, None]).exp_()
    if gate is not None:
        weights *= gate

    used, total = 0, stream
    if chunk.partial is not None:
        total = _add_scaled(total, chunk.partial[:, column], weights[:, :1])
        used = 1
    if count > first:
        values = sources.values[:, first:count].to(weights.dtype)
        taken = weights[:, None, used : used + count - first]
        if total is None:
            total = torch.bmm(taken, values)[:, 0]
        elif total is stream:
            total = torch.baddbmm(total[:, None], taken, values)[:, 0]
        else:
            total[:, None].baddbmm_(taken, values)
    for (value, _), weight in zip(private, weights[:, len(logits) - len(private) :].unbind(-1), strict=True):
        total = _add_scaled(total, value, weight[:, None])
    assert total is not None
    return total, log_sum


def _add_scaled(total: Tensor | None, value: Tensor, weight: Tensor) -> Tensor:
    return value * weight if total is None else torch.addcmul(total, value, weight)
