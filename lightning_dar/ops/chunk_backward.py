"""Backward of the two-phase read: what each row leaves behind, and what the sources take from it.

    a_is = exp(l_is - lse_s) c_s        e_s = dout_s . r_s        g_is = a_is (dout_s . v_i - e_s)
    dv_i = sum_s a_is dout_s + sum_s g_is r_i u_s - (r_i^2 / D) (sum_s g_is l_is) v_i
    du_s = sum_i g_is r_i v_i

A row's backward computes a and g for the sources of its own chunk and stores them with dout_s, e_s and lse_s. A
source's own backward, which autograd runs after that of every read that used it, takes those of its chunk one by
one, and those of all later chunks once for all sources written during its chunk (`Group`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dar.ops.chunk import CHUNK_ROWS, Chunk, Scores, Sources, chunk_start, open_chunk
from lightning_dar.ops.scores import add_weighted


@dataclass
class ChunkRows:
    """What the backward of a chunk's rows leaves; a column a row, `missing` those that had no backward."""

    start: int
    finished: int  # sources written before the chunk
    d_out: Tensor  # [M, C, D]
    weights: Tensor  # a [M, K, C] for the K sources written during the chunk
    d_logits: Tensor  # g [M, K, C]
    missing: set[int]

    def settle(self, first: int = 0) -> None:
        """Zeros for the missing columns from `first`."""
        for column in [column for column in self.missing if column >= first]:
            self.d_out[:, column] = 0
            self.weights[..., column] = 0
            self.d_logits[..., column] = 0
            self.missing.discard(column)


@dataclass
class Group:
    """The sources first .. stop-1, written during one chunk, and what they get from all later chunks."""

    first: int
    stop: int
    d_values: Tensor | None  # sum_s a_is dout_s [M, K, D]
    d_logits: Tensor | None  # g_is [M, K, later rows]


class Gradients:
    """One backward pass."""

    def __init__(self, sources: Sources, after: list[int]):
        self.scores = Scores(after)
        self.d_queries = torch.zeros_like(sources.queries)  # dU [rows, D]
        tokens, rows = len(sources.values), len(sources.queries)
        self.log_sum = sources.queries.new_full((tokens, rows), torch.inf)  # a row without backward weighs nothing
        self.mean = sources.queries.new_zeros(tokens, rows)  # e_s
        self.gate: Tensor | None = None  # c_s [rows], where one is not 1
        self.chunk: Chunk | None = None  # the one whose rows are running
        self.rows: dict[int, ChunkRows] = {}  # by first row
        self.group: Group | None = None

    def chunk_of(self, sources: Sources, row: int, count: int) -> Chunk:
        """The chunk of `row`, phase one done again."""
        start = chunk_start(row)
        if self.chunk is None or self.chunk.start != start:
            self.chunk = open_chunk(sources, self.scores, start, self.chunk)
        self.chunk.fill(sources, self.scores, count)
        return self.chunk

    def put(
        self, chunk: Chunk, row: int, d_out: Tensor, weights: Tensor, d_logits: Tensor, gate: Tensor | None
    ) -> None:
        """One row: dout [M, D], a and g [M, k] of the sources written during its chunk."""
        rows = self.rows.get(chunk.start)
        columns, column = chunk.stop - chunk.start, row - chunk.start
        if rows is None:
            written = bisect_left(self.scores.after, chunk.stop) - chunk.finished
            rows = self.rows[chunk.start] = ChunkRows(
                chunk.start,
                chunk.finished,
                d_out.new_empty(len(d_out), columns, d_out.shape[-1]),
                weights.new_empty(len(d_out), written, columns),
                weights.new_empty(len(d_out), written, columns),
                set(range(columns)),
            )
        if column not in rows.missing:
            raise RuntimeError(f"row {row} of the depth read's queries was read twice in one forward pass")
        rows.missing.discard(column)
        rows.d_out[:, column] = d_out
        rows.weights[:, : weights.shape[1], column] = weights
        rows.d_logits[:, : weights.shape[1], column] = d_logits
        if gate is not None:
            if self.gate is None:
                self.gate = self.mean.new_ones(len(self.d_queries))
            self.gate[row] = gate

    def take(self, sources: Sources, slot: int) -> Tensor:
        """dv of a source [M, D], its part of dU added to `d_queries`; all reads that used it are done."""
        after = self.scores.after[slot]
        start = chunk_start(after)
        if self.group is None or not self.group.first <= slot < self.group.stop:
            self.group = self._collect(sources, start, slot)
        group, rows = self.group, self.rows.get(start)
        value = sources.values[:, slot].to(self.mean.dtype)
        d_value = None if group.d_values is None else group.d_values[:, slot - group.first]
        d_logits = [] if group.d_logits is None else [group.d_logits[:, slot - group.first]]
        column = after + 1 - start
        if column < CHUNK_ROWS and rows is not None:
            rows.settle(column)
            own = slot - rows.finished
            d_out = rows.d_out[:, column:].to(value.dtype)
            d_value = add_weighted(d_value, rows.weights[:, own, column:], d_out)
            d_logits.insert(0, rows.d_logits[:, own, column:])
        if d_value is None:
            return torch.zeros_like(value)

        d_logit = torch.cat(d_logits, -1)
        stop = max(s + r.d_out.shape[1] for s, r in self.rows.items())
        span = slice(stop - d_logit.shape[-1], stop)
        norm = sources.inverse_rms[:, slot, None]
        logits = self.scores.between(sources, slot, span.start, span.stop)
        shrink = (d_logit * logits).sum(-1, keepdim=True).mul_(norm.square()).div_(-value.shape[-1])
        d_score = d_logit.mul_(norm)
        self.d_queries[span].addmm_(d_score.T, value)
        self.scores.forget(slot)
        return d_value.addmm(d_score, sources.queries[span]).addcmul_(value, shrink)

    def _collect(self, sources: Sources, start: int, last: int) -> Group:
        """What the later chunks hold for the sources written during the chunk at `start`, up to `last`."""
        first, later = bisect_left(self.scores.after, start), start + CHUNK_ROWS
        opened = [rows for s, rows in self.rows.items() if s >= later]
        if not opened:
            return Group(first, last + 1, None, None)
        stop = max(rows.start + rows.d_out.shape[1] for rows in opened)
        slots = range(first, last + 1)
        values = sources.values[:, first : last + 1].to(self.mean.dtype)
        logits = torch.stack([self.scores.between(sources, slot, later, stop) for slot in slots], 1)
        weights = logits.sub_(self.log_sum[:, None, later:stop]).exp_()
        if self.gate is not None:
            weights *= self.gate[later:stop]
        d_values = None if self.group is None else self.group.d_values  # its memory; every source has taken its part
        if d_values is None or d_values.shape != values.shape:
            d_values = values.new_empty(values.shape)
        fresh, products = True, []
        for s in range(later, stop, CHUNK_ROWS):
            rows = self.rows.get(s)
            if rows is None:
                products.append(weights.new_zeros(*weights.shape[:2], CHUNK_ROWS))
                continue
            rows.settle()
            d_out = rows.d_out.to(values.dtype)
            part = weights[:, :, s - later : s - later + d_out.shape[1]]
            d_values.baddbmm_(part, d_out, beta=0 if fresh else 1)
            fresh = False
            products.append(torch.bmm(values, d_out.transpose(1, 2)))
        d_logits = torch.cat(products, -1).sub_(self.mean[:, None, later:stop]).mul_(weights)
        return Group(first, last + 1, d_values, d_logits)
