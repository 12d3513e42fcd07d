"""The `fused` backend: one autograd function per read, over a list of the sources.

Forward:   l_i = r_i (v_i . u),  r_i = rsqrt(mean(v_i^2) + eps),  u = query * gain
           a = softmax_i(l)      out = stream + c sum_i a_i v_i
Backward:  e = dout . sum_i a_i v_i        g_i = c a_i (dout . v_i - e)
           dv_i = c a_i dout + g_i r_i u - (r_i^2 / D) g_i l_i v_i      du = sum_i g_i r_i v_i      dc = sum e

Nothing is held for backward but the sources themselves: logits and weights are computed again. Every read still
goes over every source, and autograd adds up one gradient per read for each.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from lightning_dar.ops.history import Read, SourceList
from lightning_dar.ops.numerics import full_precision, inverse_rms, refuse_double_backward
from lightning_dar.ops.torch_private import opaque


class Fused(SourceList):
    """Reads by one function, which holds nothing but the sources."""

    name = "fused"

    @opaque
    def read(self, read: Read) -> Tensor:
        query, gain = self.query[read.row], self.gain[read.row]
        return _Read.apply(read.stream, read.gate, query, gain, self.eps, *read.sees(self.written))


class _Read(torch.autograd.Function):
    @staticmethod
    @full_precision
    def forward(
        ctx: Any,
        stream: Tensor | None,
        gate: Tensor | None,
        query: Tensor,
        gain: Tensor,
        eps: float,
        *sources: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(gate, query, gain, *sources)
        ctx.eps = eps
        read_dtype = reduce(torch.promote_types, (source.dtype for source in sources))
        out_dtype = read_dtype if stream is None else torch.promote_types(read_dtype, stream.dtype)
        dtype = torch.promote_types(read_dtype, torch.float32)

        _, logits = _score(sources, _direction(query, gain, dtype), eps)
        weights = logits.softmax(0)
        if gate is not None:
            weights *= gate.to(dtype)
        total = None if stream is None else stream.to(dtype)
        for source, weight in zip(sources, weights, strict=True):
            source, weight = source.to(dtype), weight[..., None]
            total = source * weight if total is None else torch.addcmul(total, source, weight)
        assert total is not None
        return total.to(out_dtype)

    @staticmethod
    @full_precision
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward("fused")
        gate, query, gain, *sources = ctx.saved_tensors
        dtype = reduce(torch.promote_types, (source.dtype for source in sources), torch.float32)
        direction = _direction(query, gain, dtype)
        d_read = d_out.to(dtype)

        scale, logits = _score(sources, direction, ctx.eps)
        weights = logits.softmax(0)
        products = torch.stack([(d_read * source).sum(-1) for source in sources])
        mean = (weights * products).sum(0)
        d_gate = None if gate is None else mean.sum().to(gate.dtype)
        if gate is not None:
            weights *= gate.to(dtype)
        d_logits = products.sub_(mean).mul_(weights)
        shrink = -d_logits * logits * scale.square() / query.shape[-1]
        d_scores = d_logits * scale

        d_direction = torch.zeros_like(direction)
        d_sources: list[Tensor | None] = []
        for i, source in enumerate(sources):
            value = source.to(dtype)
            d_direction.addmv_(value.reshape(-1, value.shape[-1]).T, d_scores[i].flatten())
            if not ctx.needs_input_grad[5 + i]:
                d_sources.append(None)
                continue
            d_value = d_read * weights[i, ..., None]
            d_value.addcmul_(d_scores[i, ..., None], direction)
            d_value.addcmul_(shrink[i, ..., None], value)
            d_sources.append(d_value.to(source.dtype))
        return (
            d_out if ctx.needs_input_grad[0] else None,
            d_gate,
            (d_direction * gain).to(query.dtype),
            (d_direction * query).to(gain.dtype),
            None,
            *d_sources,
        )


def _direction(query: Tensor, gain: Tensor, dtype: torch.dtype) -> Tensor:
    return query.to(dtype) * gain.to(dtype)


def _score(sources: tuple[Tensor, ...], direction: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Inverse RMS and logits of every source, both [n, B, T]."""
    dtype = direction.dtype
    scale = torch.stack([inverse_rms(source, eps, dtype) for source in sources])
    products = torch.stack([source.to(dtype) @ direction for source in sources])
    return scale, products * scale
