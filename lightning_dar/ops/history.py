"""The depth history of one forward pass: what has been written so far, and how a site reads it.

A residual strategy appends each source once and reads each row of the queries at most once. `History` is what it
talks to; how sources are kept and read is the affair of the `Backend` behind it, one file each.

    strategy ── append, read ──> History ──> Backend:  naive | fused | fla | two_phase
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from lightning_dar.ops.definition import depth_read, depth_weights


class Read(NamedTuple):
    """One read, as `History.read` is asked for it."""

    row: int
    stream: Tensor | None = None
    gate: Tensor | None = None
    null: Tensor | None = None
    current: Tensor | None = None

    def sees(self, sources: tuple[Tensor, ...] = ()) -> tuple[Tensor, ...]:
        """All that it reads of a history with these sources: the null source first, the current one last."""
        return (
            *(() if self.null is None else (self.null,)),
            *sources,
            *(() if self.current is None else (self.current,)),
        )

    def added(self, read: Tensor) -> Tensor:
        """stream + gate * read, in plain operations."""
        if self.stream is None:
            return read
        return self.stream + (read if self.gate is None else self.gate.to(read.dtype) * read)


@dataclass(frozen=True)
class Backend(ABC):
    """The sources written so far and a way to read them. A value: `append` returns another one."""

    query: Tensor  # [rows, D]
    gain: Tensor  # [rows, D]
    eps: float
    max_sources: int  # how many will be appended at most

    name: ClassVar[str]

    @classmethod
    def why_not(cls) -> str | None:
        """The reason why this backend cannot run here, None where it can."""
        return None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def append(self, source: Tensor, after: int) -> Self: ...

    @abstractmethod
    def read(self, read: Read) -> Tensor: ...

    @abstractmethod
    def sources(self) -> tuple[Tensor, ...]:
        """The sources [B, T, D], oldest first."""


@dataclass(frozen=True)
class SourceList(Backend):
    """Keeps the sources themselves, without a copy; every read goes over all of them."""

    written: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.written)

    def append(self, source: Tensor, after: int) -> Self:
        return replace(self, written=(*self.written, source))

    def sources(self) -> tuple[Tensor, ...]:
        return self.written


@dataclass(frozen=True)
class History:
    """A value, not a container: `append` returns a new history, so nothing is kept on the module and a second
    forward before the first backward is safe.

    The rows of the queries are read in ascending order: row = site, or site * H + head where a strategy keeps H
    queries per site. What has been written `after` a row is seen by the rows that follow it.
    """

    backend: Backend

    def __len__(self) -> int:
        """The number of sources that a read sees from here."""
        return len(self.backend)

    def append(self, source: Tensor, after: int = -1) -> History:
        """The history with `source` [B, T, D] added, for the rows greater than `after` (-1: for all)."""
        return History(self.backend.append(source, after))

    def read(
        self,
        row: int,
        *,
        stream: Tensor | None = None,
        gate: Tensor | None = None,
        null: Tensor | None = None,
        current: Tensor | None = None,
    ) -> Tensor:
        """The depth read r of `row`, or stream + gate * r where a stream is given; [B, T, D].

        Args:
            row: row of the queries and gains.
            stream: [B, T, D], what the read is added to.
            gate: scalar, scales the read; only with a stream. Default 1.
            null: [B, T, D], a source that only this read sees, placed first.
            current: [B, T, D], a source still being written that only this read sees, placed last.
        """
        return self.backend.read(Read(row, stream, gate, null, current))

    def lay_open(
        self, row: int, *, null: Tensor | None = None, current: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The routing weights [B, T, n] and the n sources of the same read, without gradient."""
        backend = self.backend
        with torch.no_grad():
            sources = Read(row, null=null, current=current).sees(backend.sources())
            return depth_weights(sources, backend.query[row], backend.gain[row], backend.eps), sources


class Naive(SourceList):
    """Slow, O(S^2) bytes held for backward, differentiable any number of times."""

    name = "naive"

    def read(self, read: Read) -> Tensor:
        sources = read.sees(self.written)
        return read.added(depth_read(sources, self.query[read.row], self.gain[read.row], self.eps))
