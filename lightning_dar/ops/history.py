"""The depth history of one forward pass: what has been written so far, and how a site reads it.

A strategy appends each source once and reads at most once a row of the queries. Backends differ in what they
do at each of the two calls, so they sit behind this one interface.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_dar.ops.naive import depth_weights


@dataclass(frozen=True)
class History:
    """A value, not a container: `append` returns a new history, so nothing is kept on the module and a second
    forward before the first backward is safe.

    The rows of `query` are read in ascending order: row = site, or site * H + head where a strategy keeps H
    queries a site. What has been written `after` a row is seen by the rows that follow it.
    """

    query: Tensor  # [rows, D]
    gain: Tensor  # [rows, D]
    eps: float

    def __len__(self) -> int:
        """The number of sources that a read sees from here."""
        raise NotImplementedError

    def append(self, source: Tensor, after: int = -1) -> History:
        """The history with `source` [B, T, D] added, for the rows greater than `after` (-1: for all)."""
        raise NotImplementedError

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
            row: row of `query` and `gain`.
            stream: [B, T, D], what the read is added to.
            gate: scalar, scales the read; only with a stream. Default 1.
            null: [B, T, D], a source that only this read sees, placed first.
            current: [B, T, D], a source still being written that only this read sees, placed last.
        """
        raise NotImplementedError

    def lay_open(
        self, row: int, *, null: Tensor | None = None, current: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The routing weights [B, T, n] and the n sources of the same read, without gradient."""
        with torch.no_grad():
            sources = with_private(self._sources(), null, current)
            return depth_weights(sources, self.query[row], self.gain[row], self.eps), sources

    def _sources(self) -> tuple[Tensor, ...]:
        """The sources [B, T, D], oldest first."""
        raise NotImplementedError


@dataclass(frozen=True)
class ReferenceHistory(History):
    """Sources by reference; every read goes over all of them. A backend says how in `_read`."""

    sources: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.sources)

    def append(self, source: Tensor, after: int = -1) -> History:
        return replace(self, sources=(*self.sources, source))

    def read(
        self,
        row: int,
        *,
        stream: Tensor | None = None,
        gate: Tensor | None = None,
        null: Tensor | None = None,
        current: Tensor | None = None,
    ) -> Tensor:
        return self._read(with_private(self.sources, null, current), row, stream, gate)

    def _read(self, sources: tuple[Tensor, ...], row: int, stream: Tensor | None, gate: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _sources(self) -> tuple[Tensor, ...]:
        return self.sources


def with_private(sources: tuple[Tensor, ...], null: Tensor | None, current: Tensor | None) -> tuple[Tensor, ...]:
    """All that a read sees: the null source first, the current one last."""
    return (*(() if null is None else (null,)), *sources, *(() if current is None else (current,)))


def add_read(read: Tensor, stream: Tensor | None, gate: Tensor | None) -> Tensor:
    """stream + gate * read, in plain operations."""
    if stream is None:
        return read
    return stream + (read if gate is None else gate.to(read.dtype) * read)
