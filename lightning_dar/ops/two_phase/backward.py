"""Backward of the two-phase read, as plain tensor functions.

    a_is = exp(l_is - lse_s) c_s        e_s = dout_s . r_s        g_is = a_is (dout_s . v_i - e_s)
    dv_i = sum_s a_is dout_s + sum_s g_is r_i u_s - (r_i^2 / D) (sum_s g_is l_is) v_i
    du_s = sum_i g_is r_i v_i           the gradient of the queries, `through_logits`

A row's backward gives e_s, lse_s, and a and g for the sources written during its own chunk (`row_backward`) and for
those that it alone sees (`private_backward`). A source's own backward, which autograd runs after that of every read
that used it, takes those of its chunk one by one, and those of all later chunks once for all sources written during
its chunk (`from_later_rows`); what came through the logits is added last (`through_logits`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_dar.ops.numerics import dots
from lightning_dar.ops.two_phase.forward import Row, private_share, row_logits


class RowGradient(NamedTuple):
    """What a row's backward finds out; k sources were written in its chunk, p it alone sees."""

    mean: Tensor  # e [M] = dout . r
    log_sum: Tensor  # [M]
    own_weights: Tensor  # a [M, k], times the gate
    own_d_logits: Tensor  # g [M, k]
    private_weights: Tensor  # a [M, p], times the gate
    private_d_logits: Tensor  # g [M, p]


def row_backward(row: Row, d_read: Tensor, gate: Tensor | None) -> RowGradient:
    """d_read [M, D] is the gradient of what `read_row` returns."""
    if row.is_short:
        return _short_backward(row, d_read, gate)
    logits = row_logits(row)
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


def private_backward(row: Row, d_read: Tensor, found: RowGradient, query: Tensor, d_query: Tensor) -> list[Tensor]:
    """dv [M, D] of each private source; du of the row [D] is added to `d_query`."""
    grads = []
    for i, (value, norm, logit) in enumerate(zip(*row.private, strict=True)):
        d_logit = found.private_d_logits[:, i]
        d_score = d_logit * norm
        shrink = (d_logit * logit).mul_(norm.square()).div_(-value.shape[-1])
        d_query.addmv_(value.T, d_score)
        d_value = d_read * found.private_weights[:, i, None]
        d_value.addcmul_(d_score[:, None], query).addcmul_(value, shrink[:, None])
        grads.append(d_value)
    return grads


def from_later_rows(
    values: Tensor, weights: Tensor, d_outs: Iterable[Tensor], mean: Tensor, d_values: Tensor, d_logits: Tensor
) -> None:
    """What rows of later chunks give to K sources, all sources at once.

    Args:
        values: [M, K, D].
        weights: a [M, K, s].
        d_outs: dout [M, s, D], in pieces of consecutive rows.
        mean: e [M, s].
        d_values: overwritten with sum_s a_is dout_s [M, K, D].
        d_logits: overwritten with g [M, K, s].
    """
    products, first = [], 0
    for piece in d_outs:
        d_out = piece.to(values.dtype)
        last = first + d_out.shape[1]
        d_values.baddbmm_(weights[:, :, first:last], d_out, beta=0 if first == 0 else 1)
        products.append(torch.bmm(values, d_out.transpose(1, 2)))
        first = last
    torch.sub(torch.cat(products, -1), mean[:, None], out=d_logits).mul_(weights)


def through_logits(
    value: Tensor, norm: Tensor, logit: Tensor, d_logit: Tensor, queries: Tensor, d_value: Tensor, d_queries: Tensor
) -> Tensor:
    """Adds what the logits of one source give, in place.

    Args:
        value: v [M, D].
        norm: r [M].
        logit: l [M, s], by row.
        d_logit: g [M, s].
        queries: u [s, D].
        d_value: dv [M, D] so far; what comes through the score and the norm is added.
        d_queries: du [s, D] so far.

    Returns:
        d_value.
    """
    shrink = (d_logit * logit).sum(-1).mul_(norm.square().div_(-value.shape[-1]))
    d_score = d_logit * norm[:, None]
    d_queries.addmm_(d_score.T, value)
    return d_value.addmm_(d_score, queries).addcmul_(value, shrink[:, None])


def _short_backward(row: Row, d_read: Tensor, gate: Tensor | None) -> RowGradient:
    mean, log_sum, none = dots(d_read, row.partial[:, None])[:, 0], row.log_sum[:, 0], d_read[:, :0]
    if not row.private.values:
        return RowGradient(mean, log_sum, none, none, none, none)
    share = private_share(row)
    difference = dots(d_read, row.private.values[0][:, None])[:, 0] - mean
    mean = torch.addcmul(mean, share, difference)
    log_sum = torch.logaddexp(log_sum, row.private.logits[0])
    d_logit = difference.mul_(share).mul_(1 - share)
    if gate is not None:
        share, d_logit = share * gate, d_logit * gate
    return RowGradient(mean, log_sum, none, none, share[:, None], d_logit[:, None])


def _products(row: Row, d_read: Tensor) -> Tensor:
    """dout . v [M, n] of all that the row reads, in the order of `row_logits`."""
    products = []
    if row.partial is not None:
        products.append(dots(d_read, row.partial[:, None]))
    if row.own:
        values = row.sources.values[:, row.finished : row.count].to(d_read.dtype)
        products.append(dots(d_read, values))
    products += [dots(d_read, value[:, None]) for value in row.private.values]
    return torch.cat(products, -1)
