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

from lightning_dar.ops.chunk import Sources
from lightning_dar.ops.scores import add_weighted, dots, inverse_rms


class Private:
    """Sources that only one row sees: values [M, D], inverse RMS [M], logits [M]."""

    def __init__(self, private: Sequence[Tensor], query: Tensor, eps: float, scores: Sequence[Tensor] = ()):
        """`scores` are the norms and logits of an earlier time."""
        self.values = [source.reshape(-1, source.shape[-1]).to(query.dtype) for source in private]
        if not scores:
            norms = [inverse_rms(value, eps, query.dtype) for value in self.values]
            logits = [torch.mv(value, query).mul_(norm) for value, norm in zip(self.values, norms, strict=True)]
            scores = (*norms, *logits)
        self.norms, self.logits = scores[: len(private)], scores[len(private) :]

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


class Row(NamedTuple):
    """What one row reads."""

    partial: Tensor | None  # phase one [M, D]
    log_sum: Tensor | None  # of phase one, [M, 1]
    finished: int  # sources that phase one has read
    sources: Sources
    logits: Tensor  # [M, capacity, rows]
    number: int  # of the queries' rows
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


class RowGradient(NamedTuple):
    """What a row's backward finds out, for its own sources: a and g [M, k] of those written in its chunk come first."""

    mean: Tensor  # e [M] = dout . r
    log_sum: Tensor  # [M]
    own_weights: Tensor  # a [M, k], times the gate
    own_d_logits: Tensor  # g [M, k]
    private_weights: Tensor  # the same of the private sources
    private_d_logits: Tensor


def read_row(row: Row, stream: Tensor | None, gate: Tensor | None) -> Tensor:
    """stream + gate * r [M, D] as a new tensor; stream [M, D] or None, gate a scalar or None."""
    if row.is_short:
        read, private = row.partial, row.private.values
        if private:
            read = torch.lerp(read, private[0], _private_share(row)[:, None])
        if stream is not None:
            return stream + read if gate is None else torch.addcmul(stream, read, gate)
        return read if private else read.clone()  # the next chunk takes the memory of this one
    weights = _merged_logits(row).softmax(-1)
    if gate is not None:
        weights *= gate
    return _merge(row, weights, stream)


def row_backward(row: Row, d_read: Tensor, gate: Tensor | None) -> RowGradient:
    """d_read [M, D] is the gradient of what `read_row` returns."""
    if row.is_short:
        return _short_backward(row, d_read, gate)
    logits = _merged_logits(row)
    log_weights = logits.log_softmax(-1)
    log_sum = logits[:, 0] - log_weights[:, 0]
    weights = log_weights.exp_()
    d_logits = _products(row, d_read)
    mean = torch.linalg.vecdot(weights, d_logits)
    if gate is not None:
        weights *= gate
    d_logits.sub_(mean[:, None]).mul_(weights)
    first = 0 if row.partial is None else 1
    last = first + row.own
    return RowGradient(
        mean, log_sum, weights[:, first:last], d_logits[:, first:last], weights[:, last:], d_logits[:, last:]
    )


def _short_backward(row: Row, d_read: Tensor, gate: Tensor | None) -> RowGradient:
    mean, log_sum, none = dots(d_read, row.partial[:, None])[:, 0], row.log_sum[:, 0], d_read[:, :0]
    if not row.private.values:
        return RowGradient(mean, log_sum, none, none, none, none)
    share = _private_share(row)
    difference = dots(d_read, row.private.values[0][:, None])[:, 0] - mean
    mean = torch.addcmul(mean, share, difference)
    log_sum = torch.logaddexp(log_sum, row.private.logits[0])
    d_logit = difference.mul_(share).mul_(1 - share)
    if gate is not None:
        share, d_logit = share * gate, d_logit * gate
    return RowGradient(mean, log_sum, none, none, share[:, None], d_logit[:, None])


def _private_share(row: Row) -> Tensor:
    """The weight [M] of the one private source beside phase one."""
    return (row.private.logits[0] - row.log_sum[:, 0]).sigmoid_()


def _merge(row: Row, weights: Tensor, stream: Tensor | None) -> Tensor:
    """stream + the sum of what the row reads, by weights [M, n] in the order of `_merged_logits`."""
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


def _merged_logits(row: Row) -> Tensor:
    """[M, n] of all that the row reads: `partial` if there is one, sources written since, private sources."""
    own = row.logits[:, row.finished : row.count, row.number]
    if row.partial is None and not row.private.logits:
        return own
    partial = () if row.partial is None else (row.log_sum,)
    return torch.cat([*partial, own, *(logit[:, None] for logit in row.private.logits)], -1)


def _products(row: Row, d_read: Tensor) -> Tensor:
    """dout . v [M, n] of all that the row reads, in the order of `_merged_logits`."""
    products = []
    if row.partial is not None:
        products.append(dots(d_read, row.partial[:, None]))
    if row.own:
        values = row.sources.values[:, row.finished : row.count].to(d_read.dtype)
        products.append(dots(d_read, values))
    products += [dots(d_read, value[:, None]) for value in row.private.values]
    return torch.cat(products, -1)
