"""The `two_phase` backend: one source is read about n/C + C/2 times where stacking reads it n times.

`chunk.py` and `row.py` have the mathematics, `chunk_backward.py` what sources take in backward; here they meet
autograd. A write and a read share state outside autograd: the values [M, capacity, D] that writes fill and reads use.
A token, an empty tensor that every write passes on and every later read takes, makes autograd run a source's backward
after those of all reads that used it.

    open ── token ── write 0 ── token ── write 1 ── token ── ...
                                  └── read            └── read
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_dar.ops.chunk import (
    Chunk,
    Sources,
    all_logits,
    chunk_start,
    enter_logits,
    keeps_phase_one,
    open_chunk,
)
from lightning_dar.ops.chunk_backward import Gradients
from lightning_dar.ops.history import History, add_read, with_private
from lightning_dar.ops.naive import depth_read
from lightning_dar.ops.row import Private, Row, read_row, row_backward
from lightning_dar.ops.scores import full_precision, inverse_rms, opaque, refuse_double_backward


class Tape:
    """What the functions of one forward pass share: ints, and while a backward pass runs, its gradients."""

    def __init__(self) -> None:
        self.after: list[int] = []  # by source, the row after which it was written
        self._task = -1
        self._gradients: Gradients | None = None

    def gradients(self, sources: Sources) -> Gradients:
        """Those of the backward pass that is running."""
        task = torch._C._current_graph_task_id()
        if self._gradients is None or self._task != task:
            self._task, self._gradients = task, Gradients(sources, self.after)
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        return self._gradients

    def _end(self) -> None:
        self._gradients = None


class Workspace:
    """What the histories of one forward pass share. It goes with the last of them, not with autograd's graph; a
    checkpoint around reads keeps a history until the backward, so logits and chunk go with the last row."""

    def __init__(self, source: Tensor, queries: Tensor, capacity: int):
        tokens, dim = source.numel() // source.shape[-1], source.shape[-1]
        self.shape = source.shape
        self.sources = Sources(
            source.new_empty(tokens, capacity, dim, requires_grad=False),
            queries.new_empty(tokens, capacity, requires_grad=False),
            queries.detach(),
        )
        # Through `.data`: autograd counts the versions of what it saves, but a slot is complete before it is read.
        self._values, self._inverse_rms = self.sources.values.data, self.sources.inverse_rms.data
        self._logits: Tensor | None = queries.new_empty(tokens, capacity, len(queries), requires_grad=False)
        self.tape = Tape()
        self.chunk: Chunk | None = None
        self.keeps_phase_one = keeps_phase_one(capacity, len(queries), source.element_size(), queries.element_size())

    def write(self, slot: int, after: int, source: Tensor, eps: float) -> None:
        written = self.tape.after
        if slot == len(written):
            written.append(after)
        elif torch._C._current_graph_task_id() == -1 or written[slot] != after:  # not a checkpoint that runs again
            raise RuntimeError("a depth history was continued twice: two appends to the same history")
        self._values[:, slot] = source
        self._inverse_rms[:, slot] = inverse_rms(source, eps, self._inverse_rms.dtype)
        enter_logits(self.logits, self.sources, slot, after)

    @property
    def logits(self) -> Tensor:
        """[M, sources, rows]; once they are gone, those of the backward in which a checkpoint runs again."""
        if self._logits is not None:
            return self._logits
        if torch._C._current_graph_task_id() == -1:
            return all_logits(self.sources, self.tape.after)
        return self.tape.gradients(self.sources).logits

    def rest(self, row: int) -> None:
        """After the read of `row`: the last one of a forward leaves the sources only."""
        if row == len(self.sources.queries) - 1 and torch._C._current_graph_task_id() == -1:
            self._logits = self.chunk = None

    def chunk_of(self, row: int, count: int) -> Chunk:
        """The chunk of `row`; phase one is done where another chunk was open."""
        if count != bisect_left(self.tape.after, row):
            raise RuntimeError(f"row {row} must read all that has been written before it, not an older history")
        start = chunk_start(row)
        if self.chunk is None or self.chunk.start != start:
            before = None if self.keeps_phase_one else self.chunk
            self.chunk = open_chunk(self.sources, self.logits, self.tape.after, start, before)
        return self.chunk


@dataclass(frozen=True)
class TwoPhaseHistory(History):
    """The first `count` sources of the workspace."""

    max_sources: int
    count: int = 0
    token: Tensor | None = None
    workspace: Workspace | None = None

    def __len__(self) -> int:
        return self.count

    @opaque
    def append(self, source: Tensor, after: int = -1) -> History:
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
        return TwoPhaseHistory(
            self.query, self.gain, self.eps, self.max_sources, self.count + 1, token, workspace
        )  # not dataclasses.replace, which costs as much as a small operation

    @opaque
    def read(
        self,
        row: int,
        *,
        stream: Tensor | None = None,
        gate: Tensor | None = None,
        null: Tensor | None = None,
        current: Tensor | None = None,
    ) -> Tensor:
        private = with_private((), null, current)
        if self.workspace is None:
            return add_read(depth_read(private, self.query[row], self.gain[row], self.eps), stream, gate)
        return _Read.apply(stream, gate, self.token, self.workspace, row, self.count, self.eps, *private)

    def _sources(self) -> tuple[Tensor, ...]:
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
        extra = Private(private, sources.queries[row], eps)
        ctx.save_for_backward(*sources, gate, *kept, *private, *extra.norms, *extra.logits)

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
        d_read, extra = flat.to(queries.dtype), Private(private, queries[row], ctx.eps, scores)
        seen = Row(partial, log_sum, gradients.finished(row), sources, gradients.logits, row, count, extra)
        found = row_backward(seen, d_read, gate)
        gradients.put(row, flat, found, gate)
        d_private = extra.backward(d_read, found, queries[row], gradients.d_queries[row])
        return (
            d_out if ctx.needs_input_grad[0] else None,
            None if gate is None else found.mean.sum(),
            *(None,) * 5,
            *(value.view(d_out.shape) for value in d_private),
        )
