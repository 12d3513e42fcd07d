"""The `two_phase` backend: one source is read about n/C + C/2 times where stacking reads it n times.

`chunk.py` has the mathematics, `chunk_backward.py` its backward; here they meet autograd. A write and a read share
state outside autograd: the values [M, capacity, D] that writes fill and reads use. A token, an empty tensor that every
write passes on and every later read takes, makes autograd run a source's backward after those of all reads that
used it.

    open ── token ── write 0 ── token ── write 1 ── token ── ...
                        └─────── read ──────└─────── read
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lightning_dar.ops import chunk as chunks
from lightning_dar.ops.chunk import Chunk, Sources, merge, open_chunk
from lightning_dar.ops.chunk_backward import ChunkGradient, Gradients, collect_group
from lightning_dar.ops.history import History, add_read
from lightning_dar.ops.naive import depth_read
from lightning_dar.ops.scores import inverse_rms, refuse_double_backward


class Workspace:
    """What the histories of one forward pass share; it goes with the last of them, not with autograd's graph."""

    def __init__(self, source: Tensor, queries: Tensor, capacity: int):
        tokens, dim = source.numel() // source.shape[-1], source.shape[-1]
        self.shape = source.shape
        self.sources = Sources(
            source.new_empty(tokens, capacity, dim, requires_grad=False),
            queries.new_empty(tokens, capacity),
            queries.detach(),
        )
        self.passes = Passes()
        self.chunk: Chunk | None = None
        self.written = 0

    def write(self, slot: int, source: Tensor, eps: float) -> None:
        if slot < self.written and torch._C._current_graph_task_id() == -1:  # unless a checkpoint runs again
            raise RuntimeError("a depth history was continued twice: two appends to the same history")
        # Through `.data`: autograd counts versions of what it saves, and a slot is written before it is read.
        self.sources.values.data[:, slot] = source
        self.sources.inverse_rms.data[:, slot] = inverse_rms(source, eps, self.sources.queries.dtype)
        self.written = max(self.written, slot + 1)

    def chunk_of(self, row: int, after: tuple[int, ...]) -> Chunk:
        """The chunk of `row`, scored for all sources; phase one is done anew where another chunk was open."""
        if self.chunk is None or not self.chunk.start <= row < self.chunk.stop:
            self.chunk = None
            self.chunk = _open(self.sources, row, after)
        self.chunk.extend(self.sources, len(after))
        return self.chunk


class Passes:
    """The gradients of the backward pass that is running; nothing between passes."""

    def __init__(self) -> None:
        self._task = -1
        self._gradients: Gradients | None = None

    def current(self, sources: Sources) -> Gradients:
        task = torch._C._current_graph_task_id()
        if self._gradients is None or self._task != task:
            self._task, self._gradients = task, Gradients(torch.zeros_like(sources.queries))
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        return self._gradients

    def _end(self) -> None:
        self._gradients = None


@dataclass(frozen=True)
class TwoPhaseHistory(History):
    """Sources in one buffer; `after[i]` is the row after which source i was written."""

    queries: Tensor  # query * gain, at least fp32
    token: Tensor | None = None
    capacity: int = 0
    after: tuple[int, ...] = ()
    workspace: Workspace | None = None

    def __len__(self) -> int:
        return len(self.after)

    @torch.compiler.disable
    def append(self, source: Tensor, after: int = -1) -> History:
        if after + 1 >= len(self.queries):
            return self  # no row is left to read it
        slot = len(self.after)
        assert not self.after or after >= self.after[-1], "sources are written in the order of the rows"
        if slot == self.capacity:
            raise RuntimeError(f"the depth history was opened for {self.capacity} sources; set max_sources")
        workspace, token = self.workspace, self.token
        if workspace is None:
            queries = self.queries.to(torch.promote_types(source.dtype, self.queries.dtype))
            workspace = Workspace(source, queries, self.capacity)
            token = _Open.apply(queries, workspace)
        written = (*self.after, after)
        token = _Write.apply(source, token, workspace, written, self.eps)
        return replace(self, token=token, after=written, workspace=workspace)

    @torch.compiler.disable
    def read(
        self,
        row: int,
        *,
        stream: Tensor | None = None,
        gate: Tensor | None = None,
        null: Tensor | None = None,
        current: Tensor | None = None,
    ) -> Tensor:
        private = [source for source in (null, current) if source is not None]
        if self.workspace is None:
            return add_read(depth_read(private, self.query[row], self.gain[row], self.eps), stream, gate)
        return _Read.apply(stream, gate, self.token, self.workspace, row, self.after, self.eps, *private)

    def _sources(self) -> tuple[Tensor, ...]:
        if self.workspace is None:
            return ()
        values = self.workspace.sources.values[:, : len(self)]
        return tuple(value.view(self.workspace.shape) for value in values.unbind(1))


class _Open(torch.autograd.Function):
    """The start of the token chain, so the last to run backward: hands over the gradient of all queries."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, workspace: Workspace) -> Tensor:
        ctx.passes = workspace.passes
        ctx.save_for_backward(*workspace.sources)
        return queries.new_empty(0)

    @staticmethod
    def backward(ctx: Any, d_token: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.passes.current(Sources(*ctx.saved_tensors)).d_queries, None


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, source: Tensor, token: Tensor, workspace: Workspace, after: tuple[int, ...], eps: float
    ) -> Tensor:
        workspace.write(len(after) - 1, source.reshape(-1, source.shape[-1]), eps)
        ctx.passes, ctx.after, ctx.shape = workspace.passes, after, source.shape
        ctx.save_for_backward(*workspace.sources)
        return token.new_empty(0)

    @staticmethod
    def backward(ctx: Any, d_token: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward("two_phase")
        sources = Sources(*ctx.saved_tensors)
        gradients = ctx.passes.current(sources)
        d_source = _write_backward(gradients, sources, ctx.after)
        return d_source.to(sources.values.dtype).view(ctx.shape), None, None, None, None


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stream: Tensor | None,
        gate: Tensor | None,
        token: Tensor,
        workspace: Workspace,
        row: int,
        after: tuple[int, ...],
        eps: float,
        *private: Tensor,
    ) -> Tensor:
        sources = workspace.sources
        ctx.passes, ctx.row, ctx.after, ctx.eps = workspace.passes, row, after, eps
        ctx.save_for_backward(*sources, gate, *private)
        dtypes = {t.dtype for t in (sources.values, stream, *private) if t is not None}
        out_dtype = sources.values.dtype
        for dtype in dtypes:
            out_dtype = torch.promote_types(out_dtype, dtype)
        dtype = sources.queries.dtype
        total, _ = merge(
            workspace.chunk_of(row, after),
            sources,
            row,
            len(after),
            [(value, logit) for value, _, logit in _private(private, sources, row, eps)],
            None if stream is None else stream.reshape(-1, stream.shape[-1]).to(dtype),
            None if gate is None else gate.to(dtype),
        )
        return total.to(out_dtype).view(workspace.shape)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward("two_phase")
        values, norms, queries, gate, *private = ctx.saved_tensors
        sources = Sources(values, norms, queries)
        dtype, row = queries.dtype, ctx.row
        gradients = ctx.passes.current(sources)
        gradient = _gradient_of(gradients, sources, row, ctx.after)

        flat = d_out.reshape(-1, d_out.shape[-1])
        scored = _private(private, sources, row, ctx.eps)
        read, log_sum = merge(
            gradient.chunk, sources, row, len(ctx.after), [(value, logit) for value, _, logit in scored]
        )
        d_read = flat.to(dtype)
        mean = (d_read * read).sum(-1)
        scale = None if gate is None else gate.to(dtype)
        gradient.put(row, flat, mean, log_sum, scale)

        d_private: list[Tensor] = []
        for value, norm, logit in scored:
            weight = (logit - log_sum).exp_()
            if scale is not None:
                weight *= scale
            grad = (d_read * value).sum(-1).sub_(mean).mul_(weight)
            shrink = grad * logit * norm.square() / -value.shape[-1]
            grad = grad * norm
            gradients.d_queries[row].addmv_(value.T, grad)
            d_value = d_read * weight[:, None]
            d_value.addcmul_(grad[:, None], queries[row])
            d_value.addcmul_(shrink[:, None], value)
            d_private.append(d_value.view(d_out.shape))
        d_gate = None if gate is None else mean.sum()
        d_stream = d_out if ctx.needs_input_grad[0] else None
        return d_stream, d_gate, None, None, None, None, None, *d_private


def _open(sources: Sources, row: int, after: tuple[int, ...]) -> Chunk:
    start = row - row % chunks.CHUNK_ROWS
    return open_chunk(sources, start, sum(written < start for written in after))


def _private(
    private: Any, sources: Sources, row: int, eps: float
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Values [M, D], inverse RMS [M] and logits [M] of the sources that only one row sees."""
    dtype = sources.queries.dtype
    scored = []
    for source in private:
        value = source.reshape(-1, source.shape[-1]).to(dtype)
        norm = inverse_rms(value, eps, dtype)
        scored.append((value, norm, (value @ sources.queries[row]) * norm))
    return scored


def _gradient_of(
    gradients: Gradients, sources: Sources, row: int, after: tuple[int, ...]
) -> ChunkGradient:
    start = row - row % chunks.CHUNK_ROWS
    if start not in gradients.chunks:
        for gradient in gradients.chunks.values():
            gradient.chunk.partial = gradient.chunk.log_sum = None
        gradients.chunks[start] = ChunkGradient(_open(sources, row, after))
    gradient = gradients.chunks[start]
    gradient.chunk.extend(sources, len(after))
    return gradient


def _write_backward(gradients: Gradients, sources: Sources, after: tuple[int, ...]) -> Tensor:
    """The gradient [M, D] of the last source of `after`; adds its part to that of the queries."""
    slot, row = len(after) - 1, after[-1]
    start = row - row % chunks.CHUNK_ROWS
    group = gradients.group
    if group is None or not group.first <= slot < group.stop:
        first = sum(written < start for written in after)
        stop = max(gradients.chunks, default=start) + chunks.CHUNK_ROWS
        later = [gradients.chunks.get(s) for s in range(start + chunks.CHUNK_ROWS, stop, chunks.CHUNK_ROWS)]
        group = gradients.group = collect_group(first, slot + 1, sources, later)
    own = gradients.chunks.get(start)

    j = slot - group.first
    value = sources.values[:, slot].to(sources.queries.dtype)
    norm = sources.inverse_rms[:, slot]
    d_value, shrink = group.d_values[:, j], group.shrink[:, j]
    d_scores = []
    if own is not None and row + 1 < own.chunk.stop and slot < own.chunk.finished + len(own.chunk.recent):
        column = row + 1 - start
        logits = own.chunk.logits_of(slot)[:, None, column:]
        d_own = d_value[:, None].contiguous()
        grad = own.collect(value[:, None], logits, column, d_own)[:, 0]
        d_value = d_own[:, 0]
        shrink = shrink + (grad * logits[:, 0]).sum(-1)
        d_scores.append(grad * norm[:, None])
    if group.d_scores is not None:
        d_scores.append(group.d_scores[:, j])
    if d_scores:
        d_score = torch.cat(d_scores, -1)
        stop = max(g.chunk.stop for g in gradients.chunks.values())
        span = slice(stop - d_score.shape[-1], stop)
        d_value = d_value.addmm(d_score, sources.queries[span])
        gradients.d_queries[span].addmm_(d_score.T, value)
    return d_value.addcmul(value, (shrink * norm.square() / -value.shape[-1])[:, None])
