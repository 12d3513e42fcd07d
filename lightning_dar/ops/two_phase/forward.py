"""The two-phase read, as plain tensor functions.

Logits: those of a source for every later row are one thin product, l_is = r_i (v_i . u_s), with
r_i = rsqrt(mean(v_i^2) + eps) and u_s = query_s * gain_s.

Phase one, when a chunk starts: its C rows read the finished sources in one batched product,

    partial [M, C, D] = softmax_n(logits [M, n, C])^T x V [M, n, D]

Phase two, at each row: `partial` counts as one source, whose logit is its log-sum-exp; the sources written since the
chunk began and the private ones, which only this row sees, are the others. Where none was written, as at most rows of
the block strategies, `partial` is the read, or the read is between it and the one private source.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_dar.ops.numerics import add_weighted, inverse_rms, softmax_and_log_sum

CHUNK_ROWS = 12

BLOCK_BYTES = 1 << 28
"""Phase one takes tokens in blocks of about this size, so that a copy in fp32 stays small."""


class Sources(NamedTuple):
    """What one forward pass has written, token by token, and the queries that read it."""

    values: Tensor  # [M, capacity, D], compute dtype
    inverse_rms: Tensor  # [M, capacity], at least fp32
    queries: Tensor  # U = query * gain [rows, D], at least fp32


class Private(NamedTuple):
    """Sources that only one row sees."""

    values: list[Tensor]  # [M, D] each
    inverse_rms: Sequence[Tensor]  # [M] each
    logits: Sequence[Tensor]  # [M] each


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
        """The result for one row, [M, D], and its log-sum-exp [M, 1]."""
        if self.partial is None:
            return None, None
        return self.reads[row - self.start], self.log_sums[row - self.start]


class Row(NamedTuple):
    """What one row reads."""

    partial: Tensor | None  # phase one [M, D]
    log_sum: Tensor | None  # of phase one, [M, 1]
    finished: int  # sources that phase one has read
    sources: Sources
    logits: Tensor  # [M, capacity, rows]
    number: int  # among the queries' rows
    count: int  # sources of the history that it sees
    private: Private

    @property
    def own(self) -> int:
        """Sources written since the chunk began."""
        return self.count - self.finished

    @property
    def is_short(self) -> bool:
        """Whether it reads nothing but phase one and at most one private source."""
        return self.partial is not None and self.own == 0 and len(self.private.values) <= 1


def chunk_start(row: int) -> int:
    """The first row of the chunk of `row`; -CHUNK_ROWS for -1."""
    return row - row % CHUNK_ROWS


def keeps_phase_one(capacity: int, rows: int, source_bytes: int, read_bytes: int) -> bool:
    """Whether the result of phase one is kept for the backward rather than computed again: where `rows` results weigh
    no more than `capacity` sources do, in bytes of any one unit."""
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
        before: a chunk that is no longer needed, whose memory is taken.
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


def score_private(private: Sequence[Tensor], query: Tensor, eps: float, scores: Sequence[Tensor] = ()) -> Private:
    """Private sources [B, T, D] for one row's u = query * gain [D]; `scores` are the norms and logits of an earlier
    call, which are then not computed again."""
    values = [source.reshape(-1, source.shape[-1]).to(query.dtype) for source in private]
    if not scores:
        norms = [inverse_rms(value, eps, query.dtype) for value in values]
        scores = [*norms, *(torch.mv(value, query).mul_(norm) for value, norm in zip(values, norms, strict=True))]
    return Private(values, scores[: len(private)], scores[len(private) :])


def read_row(row: Row, stream: Tensor | None, gate: Tensor | None) -> Tensor:
    """stream + gate * r [M, D] as a new tensor; stream [M, D] or None, gate a scalar or None."""
    if row.is_short:
        read, private = row.partial, row.private.values
        if private:
            read = torch.lerp(read, private[0], private_share(row)[:, None])
        if stream is not None:
            return stream + read if gate is None else torch.addcmul(stream, read, gate)
        return read if private else read.clone()  # the next chunk takes the memory of this one
    weights = row_logits(row).softmax(-1)
    if gate is not None:
        weights *= gate
    return _weighted_sum(row, weights, stream)


def row_logits(row: Row) -> Tensor:
    """[M, n] of all that the row reads: `partial` if there is one, sources written since, private sources."""
    own = row.logits[:, row.finished : row.count, row.number]
    if row.partial is None and not row.private.logits:
        return own
    partial = () if row.partial is None else (row.log_sum,)
    return torch.cat([*partial, own, *(logit[:, None] for logit in row.private.logits)], -1)


def private_share(row: Row) -> Tensor:
    """The weight [M] of the one private source beside phase one."""
    return (row.private.logits[0] - row.log_sum[:, 0]).sigmoid_()


def _weighted_sum(row: Row, weights: Tensor, stream: Tensor | None) -> Tensor:
    """stream + the sum of what the row reads, by weights [M, n] in the order of `row_logits`."""
    total, has_partial = stream, row.partial is not None
    if has_partial:
        total = add_weighted(total, weights, row.partial[:, None])
    if row.own:
        values = row.sources.values[:, row.finished : row.count].to(weights.dtype)
        taken = weights[:, has_partial : has_partial + row.own]
        if has_partial and row.own > 1:
            total[:, None].baddbmm_(taken[:, None], values)
        else:
            total = add_weighted(total, taken, values)
    for i, value in enumerate(row.private.values, has_partial + row.own):
        total = add_weighted(total, weights[:, i, None], value[:, None])
    assert total is not None
    return total
