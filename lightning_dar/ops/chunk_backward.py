"""Backward of the two-phase read: what each row leaves behind, and what the sources take from it.

    a_is = exp(l_is - lse_s) c_s        e_s = dout_s . r_s        g_is = a_is (dout_s . v_i - e_s)
    dv_i = sum_s a_is dout_s + sum_s g_is r_i u_s - (r_i^2 / D) (sum_s g_is l_is) v_i
    du_s = sum_i g_is r_i v_i

A row's backward stores dout_s, e_s and lse_s, and a and g for the sources written during its own chunk. A source's
own backward, which autograd runs after that of every read that used it, takes those of its chunk one by one, and
those of all later chunks once for all sources written during its chunk (`_collect`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_dar.ops.chunk import CHUNK_ROWS, Chunk, Sources, all_logits, chunk_start, open_chunk
from lightning_dar.ops.row import RowGradient
from lightning_dar.ops.scores import add_weighted

SPAN_ROWS = 3 * CHUNK_ROWS
"""dout is kept in buffers of so many rows: the products of `_collect` run the faster the longer they are, and one
buffer for all rows would be there when most of the forward's memory still is."""


@dataclass
class ChunkPass:
    """What the backward of a chunk's rows leaves; `missing` are the columns of those that had none."""

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
    """One backward pass."""

    def __init__(self, sources: Sources, after: list[int]):
        self.after = after
        self.logits = all_logits(sources, after)
        self.d_queries = torch.zeros_like(sources.queries)  # dU [rows, D]
        tokens, rows = len(sources.values), len(sources.queries)
        self.log_sum = sources.queries.new_full((tokens, rows), torch.inf)  # a row without backward weighs nothing
        self.mean = sources.queries.new_zeros(tokens, rows)  # e_s
        self.shrink = sources.inverse_rms.square().div_(-sources.values.shape[-1])  # -r_i^2 / D [M, capacity]
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
        """The chunk of `row`, phase one done again."""
        start = chunk_start(row)
        if self.chunk is None or self.chunk.start != start:
            self.chunk = open_chunk(sources, self.logits, self.after, start, self.chunk)
        return self.chunk

    def put(self, row: int, d_out: Tensor, found: RowGradient, gate: Tensor | None) -> None:
        """What a row leaves: dout [M, D], e and lse [M], and a and g [M, k] of its chunk's own sources."""
        start = chunk_start(row)
        rows, column = self._rows(start, d_out), row - start
        self.stop = max(self.stop, min(start + CHUNK_ROWS, len(self.d_queries)))
        if column not in rows.missing:
            raise RuntimeError(f"row {row} of the depth read's queries was read twice in one forward pass")
        rows.missing.discard(column)
        rows.columns[column].copy_(d_out)
        self.mean[:, row] = found.mean
        self.log_sum[:, row] = found.log_sum
        own = found.own_weights.shape[1]
        if own:
            rows.weights[:, :own, column] = found.own_weights
            rows.d_logits[:, :own, column] = found.own_d_logits
        if gate is not None:
            if self.gate is None:
                self.gate = self.mean.new_ones(len(self.d_queries))
            self.gate[row] = gate

    def take(self, sources: Sources, slot: int) -> Tensor:
        """dv of a source [M, D], its part of dU added to `d_queries`; all reads that used it are done."""
        after = self.after[slot]
        rows = self._pass(chunk_start(after))
        if not rows.collected:
            self._collect(rows, sources, slot)
        value = sources.values[:, slot].to(self.mean.dtype)
        own, column = slot - rows.first, after + 1 - rows.start
        d_value = None if rows.d_values is None else rows.d_values[:, own]
        if column < len(rows.columns):
            rows.settle(column)
            d_out = rows.d_out[:, column:].to(value.dtype)
            d_value = add_weighted(d_value, rows.weights[:, own, column : len(rows.columns)], d_out)
        elif d_value is None:
            return torch.zeros_like(value)
        else:
            column, d_value = CHUNK_ROWS, d_value.clone()  # the memory of `d_values` is used again

        span = slice(rows.start + column, self.stop)
        d_logit = rows.d_logits[:, own, column : self.stop - rows.start]
        shrink = (d_logit * self.logits[:, slot, span]).sum(-1, keepdim=True).mul_(self.shrink[:, slot, None])
        d_score = d_logit * sources.inverse_rms[:, slot, None]
        self.d_queries[span].addmm_(d_score.T, value)
        return d_value.addmm_(d_score, sources.queries[span]).addcmul_(value, shrink)

    def _pass(self, start: int) -> ChunkPass:
        if start not in self.passes:
            first = self.finished(start)
            shape = (len(self.mean), bisect_left(self.after, start + CHUNK_ROWS) - first)
            weights = self.mean.new_empty(*shape, CHUNK_ROWS)
            d_logits = self.mean.new_empty(*shape, len(self.d_queries) - start)
            self.passes[start] = ChunkPass(start, first, weights, d_logits)
        return self.passes[start]

    def _rows(self, start: int, d_out: Tensor) -> ChunkPass:
        """A chunk with room for its rows' gradients, which are like `d_out` [M, D]."""
        rows = self._pass(start)
        if rows.d_out is None:
            span, stop = self._span(start)
            if span not in self.d_outs:
                self.d_outs[span] = d_out.new_empty(len(d_out), stop - span, d_out.shape[-1])
            rows.d_out = self.d_outs[span][:, start - span :][:, :CHUNK_ROWS]
            rows.columns = rows.d_out.unbind(1)
            rows.missing = set(range(len(rows.columns)))
        return rows

    def _span(self, start: int) -> tuple[int, int]:
        """The rows of the buffer that holds a chunk's: the last chunk alone, as all of the forward's memory is still
        there when it runs backward, then SPAN_ROWS at a time."""
        rows = len(self.d_queries)
        last = chunk_start(rows - 1)
        if start == last:
            return last, rows
        stop = last - (last - start - 1) // SPAN_ROWS * SPAN_ROWS
        return max(0, stop - SPAN_ROWS), stop

    def _collect(self, rows: ChunkPass, sources: Sources, last: int) -> None:
        """What the later chunks hold for the sources written during one, up to `last`."""
        rows.collected = True
        later = rows.start + CHUNK_ROWS
        if self.stop <= later:
            return
        slots, span = slice(rows.first, last + 1), slice(later, self.stop)
        values = sources.values[:, slots].to(self.mean.dtype)
        weights = (self.logits[:, slots, span] - self.log_sum[:, None, span]).exp_()
        if self.gate is not None:
            weights *= self.gate[span]
        if self._d_values is None or self._d_values.shape != values.shape:
            self._d_values = values.new_empty(values.shape)
        for start in range(later, self.stop, CHUNK_ROWS):
            self._rows(start, sources.values[:, 0]).settle()
        products = []
        for first, buffer in sorted(self.d_outs.items()):
            begin, end = max(first, later), min(first + buffer.shape[1], self.stop)
            if begin >= end:
                continue
            d_out = buffer[:, begin - first : end - first].to(values.dtype)
            part = weights[:, :, begin - later : end - later]
            self._d_values.baddbmm_(part, d_out, beta=0 if begin == later else 1)
            products.append(torch.bmm(values, d_out.transpose(1, 2)))
        rows.d_values = self._d_values
        d_logits = rows.d_logits[:, : len(values[0]), CHUNK_ROWS:][..., : self.stop - later]
        torch.sub(torch.cat(products, -1), self.mean[:, None, span], out=d_logits).mul_(weights)
