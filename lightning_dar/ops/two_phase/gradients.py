"""What one backward pass of the two-phase read holds: what rows leave behind, until the sources take it.

A row's backward stores dout_s, e_s and lse_s, and a and g for the sources written during its own chunk (`put`). A
source's backward, which autograd runs after that of every read that used it, takes its share (`take`). The
mathematics is in `backward.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_dar.ops.numerics import add_weighted
from lightning_dar.ops.two_phase.backward import RowGradient, from_later_rows, through_logits
from lightning_dar.ops.two_phase.forward import CHUNK_ROWS, Chunk, Sources, all_logits, chunk_start, open_chunk

SPAN_ROWS = 3 * CHUNK_ROWS
"""dout is kept in buffers of so many rows: the products of `_collect` run the faster the longer they are, and one
buffer for all rows would be there when most of the forward's memory still is."""


@dataclass
class ChunkPass:
    """What the backward of a chunk's rows leaves; `missing` are the columns of the rows that had none."""

    start: int
    first: int  # sources written before the chunk; those written during it are first .. first+K-1
    weights: Tensor  # a [M, K, C]
    d_logits: Tensor  # g [M, K, rows - start]: of the chunk's own rows, then of all later ones
    d_out: Tensor | None = None  # [M, C, D], part of a buffer; None until a row of the chunk had its backward
    columns: tuple[Tensor, ...] = ()  # of d_out
    missing: set[int] = field(default_factory=set)
    collected: bool = False
    d_values: Tensor | None = None  # sum_s a_is dout_s over the later chunks [M, K, D], once collected

    def settle(self, first: int = 0) -> None:
        """Zeros for the missing columns from `first`."""
        for column in [column for column in self.missing if column >= first]:
            self.columns[column].zero_()
            self.weights[..., column] = 0
            self.d_logits[..., column] = 0
            self.missing.discard(column)


class Gradients:
    """The buffers of one backward pass."""

    def __init__(self, sources: Sources, after: list[int]):
        self.after = after
        self.logits = all_logits(sources, after)
        self.d_queries = torch.zeros_like(sources.queries)  # dU [rows, D]
        tokens, rows = len(sources.values), len(sources.queries)
        self.log_sum = sources.queries.new_full((tokens, rows), torch.inf)  # a row without backward weighs nothing
        self.mean = sources.queries.new_zeros(tokens, rows)  # e_s
        self.gate: Tensor | None = None  # c_s [rows], where one is not 1
        self.chunk: Chunk | None = None  # the one whose rows are running
        self.passes: dict[int, ChunkPass] = {}  # by first row
        self.d_outs: dict[int, Tensor] = {}  # [M, up to SPAN_ROWS, D] by first row
        self.stop = 0  # behind the last chunk that had a backward
        self._d_values: Tensor | None = None  # memory of the last `_collect`, whose sources have all taken their part

    def finished(self, row: int) -> int:
        """Sources written before the chunk of `row`."""
        return bisect_left(self.after, chunk_start(row))

    def chunk_of(self, sources: Sources, row: int) -> Chunk:
        """The chunk of `row`, phase one computed again."""
        start = chunk_start(row)
        if self.chunk is None or self.chunk.start != start:
            self.chunk = open_chunk(sources, self.logits, self.after, start, self.chunk)
        return self.chunk

    def put(self, row: int, d_out: Tensor, found: RowGradient, gate: Tensor | None) -> None:
        """What a row leaves: dout [M, D], e and lse [M], and a and g [M, k] of its chunk's own sources."""
        start = chunk_start(row)
        chunk_pass, column = self._pass_for(start, d_out), row - start
        self.stop = max(self.stop, min(start + CHUNK_ROWS, len(self.d_queries)))
        if column not in chunk_pass.missing:
            raise RuntimeError(f"row {row} of the depth read's queries was read twice in one forward pass")
        chunk_pass.missing.discard(column)
        chunk_pass.columns[column].copy_(d_out)
        self.mean[:, row] = found.mean
        self.log_sum[:, row] = found.log_sum
        own = found.own_weights.shape[1]
        if own:
            chunk_pass.weights[:, :own, column] = found.own_weights
            chunk_pass.d_logits[:, :own, column] = found.own_d_logits
        if gate is not None:
            if self.gate is None:
                self.gate = self.mean.new_ones(len(self.d_queries))
            self.gate[row] = gate

    def take(self, sources: Sources, slot: int) -> Tensor:
        """dv of a source [M, D], its part of dU added to `d_queries`; all reads that used it are done."""
        after = self.after[slot]
        chunk_pass = self._pass(chunk_start(after))
        if not chunk_pass.collected:
            self._collect(chunk_pass, sources, slot)
        value = sources.values[:, slot].to(self.mean.dtype)
        own, column = slot - chunk_pass.first, after + 1 - chunk_pass.start
        d_value = None if chunk_pass.d_values is None else chunk_pass.d_values[:, own]
        if column < len(chunk_pass.columns):
            chunk_pass.settle(column)
            d_out = chunk_pass.d_out[:, column:].to(value.dtype)
            d_value = add_weighted(d_value, chunk_pass.weights[:, own, column : len(chunk_pass.columns)], d_out)
        elif d_value is None:
            return torch.zeros_like(value)
        else:
            column, d_value = CHUNK_ROWS, d_value.clone()  # the memory of `d_values` is used again

        span = slice(chunk_pass.start + column, self.stop)
        logit, d_logit = self.logits[:, slot, span], chunk_pass.d_logits[:, own, column : self.stop - chunk_pass.start]
        norm, d_queries = sources.inverse_rms[:, slot], self.d_queries[span]
        return through_logits(value, norm, logit, d_logit, sources.queries[span], d_value, d_queries)

    def _pass(self, start: int) -> ChunkPass:
        if start not in self.passes:
            first = self.finished(start)
            shape = (len(self.mean), bisect_left(self.after, start + CHUNK_ROWS) - first)
            weights = self.mean.new_empty(*shape, CHUNK_ROWS)
            d_logits = self.mean.new_empty(*shape, len(self.d_queries) - start)
            self.passes[start] = ChunkPass(start, first, weights, d_logits)
        return self.passes[start]

    def _pass_for(self, start: int, d_out: Tensor) -> ChunkPass:
        """The pass of a chunk, with room for its rows' gradients, which are like `d_out` [M, D]."""
        chunk_pass = self._pass(start)
        if chunk_pass.d_out is None:
            span, stop = self._span(start)
            if span not in self.d_outs:
                self.d_outs[span] = d_out.new_empty(len(d_out), stop - span, d_out.shape[-1])
            chunk_pass.d_out = self.d_outs[span][:, start - span :][:, :CHUNK_ROWS]
            chunk_pass.columns = chunk_pass.d_out.unbind(1)
            chunk_pass.missing = set(range(len(chunk_pass.columns)))
        return chunk_pass

    def _span(self, start: int) -> tuple[int, int]:
        """The rows of the buffer that holds a chunk's: the last chunk alone, as all of the forward's memory is still
        there when it runs backward, then SPAN_ROWS at a time."""
        rows = len(self.d_queries)
        last = chunk_start(rows - 1)
        if start == last:
            return last, rows
        stop = last - (last - start - 1) // SPAN_ROWS * SPAN_ROWS
        return max(0, stop - SPAN_ROWS), stop

    def _collect(self, chunk_pass: ChunkPass, sources: Sources, last: int) -> None:
        """What the later chunks hold for the sources written during one, up to `last`."""
        chunk_pass.collected = True
        later = chunk_pass.start + CHUNK_ROWS
        if self.stop <= later:
            return
        slots, span = slice(chunk_pass.first, last + 1), slice(later, self.stop)
        values = sources.values[:, slots].to(self.mean.dtype)
        weights = (self.logits[:, slots, span] - self.log_sum[:, None, span]).exp_()
        if self.gate is not None:
            weights *= self.gate[span]
        if self._d_values is None or self._d_values.shape != values.shape:
            self._d_values = values.new_empty(values.shape)
        for start in range(later, self.stop, CHUNK_ROWS):
            self._pass_for(start, sources.values[:, 0]).settle()
        buffers = ((max(first, later) - first, self.stop - first, self.d_outs[first]) for first in sorted(self.d_outs))
        d_outs = (buffer[:, begin:end] for begin, end, buffer in buffers if begin < min(end, buffer.shape[1]))
        chunk_pass.d_values = self._d_values
        d_logits = chunk_pass.d_logits[:, : len(values[0]), CHUNK_ROWS:][..., : self.stop - later]
        from_later_rows(values, weights, d_outs, self.mean[:, span], self._d_values, d_logits)
