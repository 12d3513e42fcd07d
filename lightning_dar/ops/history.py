"""The depth history of one forward pass: what has been written so far, and how a site reads it.

A strategy appends each source once and reads at most once a site. Backends differ in what they do at each
of the two calls, so they sit behind this one interface.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from lightning_dar.ops.naive import depth_read, depth_weights


@dataclass(frozen=True)
class History:
    """Sources by reference, oldest first; every read goes over all of them.

    A value, not a container: `append` returns a new history, so nothing is kept on the module and a second
    forward before the first backward is safe.
    """

    query: Tensor  # [reads, D]
    gain: Tensor  # [reads, D]
    eps: float
    sources: tuple[Tensor, ...] = ()

    def append(self, source: Tensor) -> History:
        """The history with `source` [B, T, D] added; reads from here on see it."""
        return replace(self, sources=(*self.sources, source))

    def read(self, site: int, null: Tensor | None = None, current: Tensor | None = None) -> Tensor:
        """The depth read of `site`, [B, T, D].

        Args:
            site: row of `query` and `gain`.
            null: [B, T, D], a source that only this read sees, placed first.
            current: [B, T, D], a source still being written that only this read sees, placed last.
        """
        return depth_read(self._seen(null, current), self.query[site], self.gain[site], self.eps)

    def weights(self, site: int, null: Tensor | None = None, current: Tensor | None = None) -> Tensor:
        """The routing weights [B, T, n] of the same read; n counts `null` and `current` where given."""
        return depth_weights(self._seen(null, current), self.query[site], self.gain[site], self.eps)

    def _seen(self, null: Tensor | None, current: Tensor | None) -> list[Tensor]:
        return [source for source in (null, *self.sources, current) if source is not None]


def open_history(query: Tensor, gain: Tensor, eps: float) -> History:
    """An empty history for queries and gains [reads, D]."""
    return History(query, gain, eps)
