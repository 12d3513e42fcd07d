"""The `two_phase` backend: where the plain tensor functions meet autograd.

A write and a read share state outside autograd: the values [M, capacity, D] that writes fill and reads use. A token,
an empty tensor that every write passes on and every later read takes, makes autograd run a source's backward after
those of all reads that used it.

    open ── token ── write 0 ── token ── write 1 ── token ── ...
                                  └── read            └── read

Query and gain get their gradients through `_Open`, the last to run backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from lightning_dar.ops.history import Backend, Naive, Read
from lightning_dar.ops.numerics import full_precision, refuse_double_backward
from lightning_dar.ops.torch_private import opaque
from lightning_dar.ops.two_phase.backward import private_backward, row_backward
from lightning_dar.ops.two_phase.forward import Row, Sources, read_row, score_private
from lightning_dar.ops.two_phase.workspace import Workspace


@dataclass(frozen=True)
class TwoPhase(Backend):
    """The first `count` sources of the workspace."""

    name = "two_phase"

    count: int = 0
    token: Tensor | None = None
    workspace: Workspace | None = None

    def __len__(self) -> int:
        return self.count

    @opaque
    def append(self, source: Tensor, after: int) -> Self:
        if after + 1 >= len(self.query):
            return self  # no row is left to read it
        if self.count == self.max_sources:
            raise RuntimeError(f"the depth history was opened for {self.max_sources} sources: set max_sources")
        workspace, token = self.workspace, self.token
        if workspace is None:
            dtype = torch.promote_types(torch.promote_types(self.query.dtype, source.dtype), torch.float32)
            queries = self.query.to(dtype) * self.gain.to(dtype)
            workspace = Workspace(source, queries, self.max_sources)
            token = _Open.apply(queries, workspace)
        token = _Write.apply(source, token, workspace, self.count, after, self.eps)
        return TwoPhase(
            self.query, self.gain, self.eps, self.max_sources, self.count + 1, token, workspace
        )  # not dataclasses.replace, which costs as much as a small operation

    @opaque
    def read(self, read: Read) -> Tensor:
        if self.workspace is None:
            return Naive(self.query, self.gain, self.eps, self.max_sources).read(read)
        workspace, row = self.workspace, read.row
        return _Read.apply(read.stream, read.gate, self.token, workspace, row, self.count, self.eps, *read.sees())

    def sources(self) -> tuple[Tensor, ...]:
        if self.workspace is None:
            return ()
        values = self.workspace.sources.values[:, : self.count]
        return tuple(value.view(self.workspace.shape) for value in values.unbind(1))


class _Open(torch.autograd.Function):
    """The start of the token chain, so the last to run backward: it hands over the gradient of all queries."""

    @staticmethod
    @full_precision
    def forward(ctx: Any, queries: Tensor, workspace: Workspace) -> Tensor:
        ctx.tape = workspace.tape
        ctx.save_for_backward(*workspace.sources)
        return queries.new_empty(0)

    @staticmethod
    @full_precision
    def backward(ctx: Any, d_token: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.tape.gradients(Sources(*ctx.saved_tensors)).d_queries, None


class _Write(torch.autograd.Function):
    """Fills a slot. Its backward takes the gradient that the reads have left for it."""

    @staticmethod
    @full_precision
    def forward(
        ctx: Any, source: Tensor, token: Tensor, workspace: Workspace, slot: int, after: int, eps: float
    ) -> Tensor:
        workspace.write(slot, after, source.reshape(-1, source.shape[-1]), eps)
        ctx.tape, ctx.slot, ctx.shape = workspace.tape, slot, source.shape
        ctx.save_for_backward(*workspace.sources)
        ctx.set_materialize_grads(False)
        return token.new_empty(0)

    @staticmethod
    @full_precision
    def backward(ctx: Any, d_token: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_double_backward("two_phase")
        sources = Sources(*ctx.saved_tensors)
        d_source = ctx.tape.gradients(sources).take(sources, ctx.slot)
        d_source = d_source.view(ctx.shape).to(sources.values.dtype) if ctx.needs_input_grad[0] else None
        return d_source, None, None, None, None, None


class _Read(torch.autograd.Function):
    """stream + gate * r of one row, from the workspace and up to two private sources."""

    @staticmethod
    @full_precision
    def forward(
        ctx: Any,
        stream: Tensor | None,
        gate: Tensor | None,
        token: Tensor,
        workspace: Workspace,
        row: int,
        count: int,
        eps: float,
        *private: Tensor,
    ) -> Tensor:
        sources, chunk = workspace.sources, workspace.chunk_of(row, count)
        ctx.tape, ctx.row, ctx.count, ctx.eps = workspace.tape, row, count, eps
        partial, log_sum = chunk.phase_one(row)
        # A final read lies outside of the layers that a checkpoint runs again, and would hold its whole chunk.
        is_final = stream is None and row + 1 == len(sources.queries)
        kept = (partial, log_sum) if workspace.keeps_phase_one and not is_final else (None, None)
        extra = score_private(private, sources.queries[row], eps)
        ctx.save_for_backward(*sources, gate, *kept, *private, *extra.inverse_rms, *extra.logits)

        flat = None if stream is None else stream.reshape(-1, stream.shape[-1]).to(sources.queries.dtype)
        seen = Row(partial, log_sum, chunk.finished, sources, workspace.logits, row, count, extra)
        total = read_row(seen, flat, gate)
        workspace.rest(row)
        dtype = sources.values.dtype
        for tensor in (stream, *private):
            if tensor is not None and tensor.dtype != dtype:
                dtype = torch.promote_types(dtype, tensor.dtype)
        return total.to(dtype).view(workspace.shape)

    @staticmethod
    @full_precision
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward("two_phase")
        values, norms, queries, gate, partial, log_sum, *own = ctx.saved_tensors  # a checkpoint unpacks them once
        private, scores = own[: len(own) // 3], own[len(own) // 3 :]
        sources, row, count = Sources(values, norms, queries), ctx.row, ctx.count
        gradients = ctx.tape.gradients(sources)
        if partial is None:
            partial, log_sum = gradients.chunk_of(sources, row).phase_one(row)
        flat = d_out.reshape(-1, d_out.shape[-1])
        d_read, extra = flat.to(queries.dtype), score_private(private, queries[row], ctx.eps, scores)
        seen = Row(partial, log_sum, gradients.finished(row), sources, gradients.logits, row, count, extra)
        found = row_backward(seen, d_read, gate)
        gradients.put(row, flat, found, gate)
        d_private = private_backward(seen, d_read, found, queries[row], gradients.d_queries[row])
        return (
            d_out if ctx.needs_input_grad[0] else None,
            None if gate is None else found.mean.sum(),
            *(None,) * 5,
            *(value.view(d_out.shape) for value in d_private),
        )
