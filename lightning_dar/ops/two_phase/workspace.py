"""What one forward pass of the two-phase read holds."""

from __future__ import annotations

from bisect import bisect_left

from torch import Tensor

from lightning_dar.ops.numerics import inverse_rms
from lightning_dar.ops.torch_private import at_end_of_backward, running_backward
from lightning_dar.ops.two_phase.forward import (
    Chunk,
    Sources,
    all_logits,
    chunk_start,
    enter_logits,
    keeps_phase_one,
    open_chunk,
)
from lightning_dar.ops.two_phase.gradients import Gradients


class Tape:
    """What the functions of one forward pass share: ints, and while a backward pass runs, its gradients."""

    def __init__(self) -> None:
        self.after: list[int] = []  # by source, the row after which it was written
        self._task: int | None = None
        self._gradients: Gradients | None = None

    def gradients(self, sources: Sources) -> Gradients:
        """The gradients of the backward pass that is running."""
        task = running_backward()
        if self._gradients is None or self._task != task:
            self._task, self._gradients = task, Gradients(sources, self.after)
            at_end_of_backward(self._end)
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
        elif running_backward() is None or written[slot] != after:  # not a checkpoint that runs again
            raise RuntimeError("a depth history was continued twice: two appends to the same history")
        self._values[:, slot] = source
        self._inverse_rms[:, slot] = inverse_rms(source, eps, self._inverse_rms.dtype)
        enter_logits(self.logits, self.sources, slot, after)

    @property
    def logits(self) -> Tensor:
        """[M, sources, rows]; once they are gone, those of the backward in which a checkpoint runs again."""
        if self._logits is not None:
            return self._logits
        if running_backward() is None:
            return all_logits(self.sources, self.tape.after)
        return self.tape.gradients(self.sources).logits

    def rest(self, row: int) -> None:
        """After the read of `row`: the last one of a forward leaves the sources only."""
        if row == len(self.sources.queries) - 1 and running_backward() is None:
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
