"""One row of the two-phase read, forward and backward, as plain tensor functions.

Merge: phase one of the chunk, `partial`, counts as one source, whose logit is its log-sum-exp; the sources written
since the chunk began and the private ones, which only this row sees, are the others. Where none was written, as at
most rows of the block strategies, `partial` is the read, or the read is between it and the one private source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_dar.ops.chunk import Chunk, Sources
from lightning_dar.ops.scores import add_weighted, dots, inverse_rms


class Private:
    """Sources that only one row sees: values [M, D], inverse RMS [M], logits [M]."""

    def __init__(self, private: Sequence[Tensor], sources: Sources, row: int, eps: float):
        query = sources.queries[row]
        self.values = [source.reshape(-1, source.shape[-1]).to(query.dtype) for source in private]
        self.norms = [inverse_rms(value, eps, query.dtype) for value in self.values]
        self.logits = [torch.mv(value, query).mul_(norm) for value, norm in zip(self.values, self.norms, strict=True)]

    def backward(self, d_read: Tensor, found: RowGradient, query: Tensor, d_query: Tensor) -> list[Tensor]:
        """dv [M, D] of each; `d_query` [D] is added to."""
        grads = []
        for i, (value, norm, logit) in enumerate(zip(self.values, self.norms, self.logits, strict=True)):
            d_logit = found.private_d_logits[:, i]
            d_score = d_logit * norm
            shrink = (d_logit * logit).mul_(norm.square()).div_(-value.shape[-1])
            d_query.addmv_(value.T, d_score)
            d_value = d_read * found.private_weights[:, i, None]
            d_value.addcmul_(d_score[:, None], query).addcmul_(value, shrink[:, None])
            grads.append(d_value)
        return grads


class RowGradient(NamedTuple):
    """What a row's backward finds out, for its own sources: a and g [M, k] of those written in its chunk come first."""

    mean: Tensor  # e [M] = dout . r
    log_sum: Tensor  # [M]
    own_weights: Tensor  # a [M, k], times the gate
    own_d_logits: Tensor  # g [M, k]
    private_weights: Tensor  # the same of the private sources
    private_d_logits: Tensor


def read_row(
    chunk: Chunk,
    sources: Sources,
    logits: Tensor,
    row: int,
    count: int,
    private: Private,
    stream: Tensor | None,
    gate: Tensor | None,
) -> Tensor:
    """stream + gate * r [M, D] as a new tensor.

    Args:
        chunk: the row's chunk.
        sources: values, norms and queries.
        logits: [M, capacity, rows].
        row: row of the queries.
        count: sources of the history that the row sees.
        private: those outside the history.
        stream: [M, D] or None.
        gate: scalar or None.
    """
    if _is_short(chunk, count, private):
        read = chunk.reads[row - chunk.start]
        if private.values:
            read = torch.lerp(read, private.values[0], _private_share(chunk, row, private)[:, None])
        if stream is not None:
            return stream + read if gate is None else torch.addcmul(stream, read, gate)
        return read if private.values else read.clone()  # the next chunk takes the memory of this one
    weights = _merged_logits(chunk, logits, row, count, private).softmax(-1)
    if gate is not None:
        weights *= gate
    return _merge(chunk, sources, weights, row, count, private.values, stream)


def row_backward(
    chunk: Chunk,
    sources: Sources,
    logits: Tensor,
    row: int,
    count: int,
    private: Private,
    d_read: Tensor,
    gate: Tensor | None,
) -> RowGradient:
    """Arguments as of `read_row`; d_read [M, D] is the gradient of its result."""
    if _is_short(chunk, count, private):
        return _short_backward(chunk, row, private, d_read, gate)
    merged = _merged_logits(chunk, logits, row, count, private)
    log_weights = merged.log_softmax(-1)
    log_sum = merged[:, 0] - log_weights[:, 0]
    weights = log_weights.exp_()
    d_logits = _products(d_read, chunk, sources, row, count, private)
    mean = torch.linalg.vecdot(weights, d_logits)
    if gate is not None:
        weights *= gate
    d_logits.sub_(mean[:, None]).mul_(weights)
    first = 0 if chunk.partial is None else 1
    last = first + count - chunk.finished
    return RowGradient(
        mean, log_sum, weights[:, first:last], d_logits[:, first:last], weights[:, last:], d_logits[:, last:]
    )


def _is_short(chunk: Chunk, count: int, private: Private) -> bool:
    """Whether the row reads nothing but phase one and at most one private source."""
    return chunk.partial is not None and count == chunk.finished and len(private.values) <= 1


def _private_share(chunk: Chunk, row: int, private: Private) -> Tensor:
    """The weight [M] of the one private source beside phase one."""
    return (private.logits[0] - chunk.log_sums[row - chunk.start][:, 0]).sigmoid_()


def _short_backward(chunk: Chunk, row: int, private: Private, d_read: Tensor, gate: Tensor | None) -> RowGradient:
    mean = dots(d_read, chunk.reads[row - chunk.start][:, None])[:, 0]
    log_sum = chunk.log_sums[row - chunk.start][:, 0]
    none = d_read[:, :0]
    if not private.values:
        return RowGradient(mean, log_sum, none, none, none, none)
    share = _private_share(chunk, row, private)
    difference = dots(d_read, private.values[0][:, None])[:, 0] - mean
    mean = torch.addcmul(mean, share, difference)
    log_sum = torch.logaddexp(log_sum, private.logits[0])
    d_logit = difference.mul_(share).mul_(1 - share)
    if gate is not None:
        share, d_logit = share * gate, d_logit * gate
    return RowGradient(mean, log_sum, none, none, share[:, None], d_logit[:, None])


def _merge(
    chunk: Chunk,
    sources: Sources,
    weights: Tensor,
    row: int,
    count: int,
    private: list[Tensor],
    stream: Tensor | None,
) -> Tensor:
    """stream + the sum of what the row reads, by weights [M, n] in the order of `_merged_logits`."""
    total, own = stream, count - chunk.finished
    if chunk.partial is not None:
        total = add_weighted(total, weights, chunk.reads[row - chunk.start][:, None])
    if own:
        values = sources.values[:, chunk.finished : count].to(weights.dtype)
        first = 0 if chunk.partial is None else 1
        taken = weights[:, first : first + own]
        if chunk.partial is not None and own > 1:
            total[:, None].baddbmm_(taken[:, None], values)
        else:
            total = add_weighted(total, taken, values)
    for i, value in enumerate(private, weights.shape[1] - len(private)):
        total = add_weighted(total, weights[:, i, None], value[:, None])
    assert total is not None
    return total


def _merged_logits(chunk: Chunk, logits: Tensor, row: int, count: int, private: Private) -> Tensor:
    """[M, n] of all that the row reads: `partial` if there is one, sources written since, private sources."""
    own = logits[:, chunk.finished : count, row]
    if chunk.partial is None and not private.logits:
        return own
    partial = () if chunk.partial is None else (chunk.log_sums[row - chunk.start],)
    return torch.cat([*partial, own, *(logit[:, None] for logit in private.logits)], -1)


def _products(d_read: Tensor, chunk: Chunk, sources: Sources, row: int, count: int, private: Private) -> Tensor:
    """dout . v [M, n] of all that the row reads, in the order of `_merged_logits`."""
    products = []
    if chunk.partial is not None:
        products.append(dots(d_read, chunk.reads[row - chunk.start][:, None]))
    if count > chunk.finished:
        values = sources.values[:, chunk.finished : count].to(d_read.dtype)
        products.append(dots(d_read, values))
    products += [dots(d_read, value[:, None]) for value in private.values]
    return torch.cat(products, -1)
