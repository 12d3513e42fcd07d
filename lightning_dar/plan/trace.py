"""How a strategy reads and writes the depth history: its four verbs run once, on tensors without data.

A backend that only takes notes stands in for the real one, so that a plugin is planned for as the shipped strategies
are. State that a strategy keeps elsewhere than in `RoutedResidual.open_history` is not seen.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Self

import torch
from torch import Tensor, nn

from lightning_dar.model import TransformerConfig
from lightning_dar.model.layer import layer_sites
from lightning_dar.ops.history import Backend, History, Read
from lightning_dar.plan.setting import Precision
from lightning_dar.residual import ResidualConfig, Shape, build_residual


@dataclass(frozen=True, kw_only=True)
class TracedRead:
    """One depth read."""

    row: int
    kept: int
    """Sources of the history that it sees."""

    private: int
    """Sources that it alone sees."""

    final: bool
    """Whether it makes the hidden states, after the last layer."""

    @property
    def sources(self) -> int:
        return self.kept + self.private


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One forward of a strategy. Widths are bytes a token."""

    reads: tuple[TracedRead, ...]
    written: tuple[int, ...]
    """By source, the row after which it was written."""

    rows: int
    """Queries; 0 where nothing is routed."""

    capacity: int
    """Sources that the history was opened for."""

    source_bytes: int
    """Of one source in the history's own buffer: D in the dtype of the first."""

    inputs: tuple[tuple[torch.dtype, ...], ...]
    """What each sublayer reads, one tensor [.., D] or three, and at the end the hidden states."""

    starts: int
    """Of the state at the starts of all layers, but for the history."""

    referenced: int
    """Of the sources by reference, but for those that are a sublayer's input themselves."""

    beside_starts: int
    """Likewise, but for those that are in `starts`; of the private ones those of the final read only."""

    private: int
    """Of the sources that one read of a layer alone sees, but for those that are a sublayer's input themselves."""

    private_final: int
    """Likewise, of the final read."""

    @property
    def sources_read(self) -> int:
        """Over all reads."""
        return sum(read.sources for read in self.reads)


@dataclass
class _Notes:
    reads: list[TracedRead] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    sources: list[Tensor] = field(default_factory=list)
    private: list[Tensor] = field(default_factory=list)
    inputs: list[list[Tensor]] = field(default_factory=list)
    starts: list[Tensor] = field(default_factory=list)
    rows: int = 0
    capacity: int = 0
    final: bool = False


@dataclass(frozen=True)
class _NotingBackend(Backend):
    name = "notes"

    notes: _Notes
    count: int = 0

    def __len__(self) -> int:
        return self.count

    def append(self, source: Tensor, after: int) -> Self:
        if after + 1 >= len(self.query):
            return self
        self.notes.written.append(after)
        self.notes.sources.append(source)
        return replace(self, count=self.count + 1)

    def sources(self) -> tuple[Tensor, ...]:
        return tuple(self.notes.sources[: self.count])

    def read(self, read: Read) -> Tensor:
        private, notes = read.sees(), self.notes
        notes.reads.append(TracedRead(row=read.row, kept=self.count, private=len(private), final=notes.final))
        if read.current is not None:  # a null source is a parameter, expanded
            notes.private.append(read.current)
        seen = [*notes.sources[:1], *private, *([] if read.stream is None else [read.stream])]
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in seen))
        return seen[0].new_empty(seen[0].shape, dtype=dtype)


def trace_strategy(config: TransformerConfig, residual: ResidualConfig, precision: Precision) -> Trace:
    """Runs the strategy's verbs over all sites. Raises UsageError for options that cannot work."""
    shape = Shape(num_layers=config.num_layers, hidden_size=config.hidden_size, eps=config.norm_eps)
    notes = _Notes()
    with torch.device("meta"), torch.no_grad():
        strategy = build_residual(replace(residual, depth_read="naive"), shape)
        # On the instance alone: every history that it opens takes notes.
        strategy.open_history = lambda max_sources=None: _open(strategy, notes, max_sources)
        state = strategy.start(torch.empty(1, 1, config.hidden_size, dtype=precision.stream))
        for sites in layer_sites(config.num_layers):
            notes.starts += _tensors(state)
            for site in sites:
                notes.inputs.append(_tensors(strategy.read(state, site)))
                state = strategy.write(state, torch.empty(1, 1, config.hidden_size, dtype=precision.compute), site)
        notes.final = True
        notes.inputs.append([strategy.finish(state)])
    return _summed(notes)


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dicts; those of a history are counted by the history."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, tuple | list) else []


def _open(strategy: nn.Module, notes: _Notes, max_sources: int | None) -> History:
    notes.rows = len(strategy.query)
    notes.capacity = max_sources or notes.rows
    return History(_NotingBackend(strategy.query, strategy.gain, strategy.shape.eps, notes.capacity, notes))


def _summed(notes: _Notes) -> Trace:
    read = [tensor for site in notes.inputs for tensor in site]
    finals = sum(seen.final for seen in notes.reads) if notes.private else 0
    final = notes.private[len(notes.private) - finals :]
    return Trace(
        reads=tuple(notes.reads),
        written=tuple(notes.written),
        rows=notes.rows,
        capacity=notes.capacity if notes.sources else 0,
        source_bytes=notes.sources[0].nbytes if notes.sources else 0,
        inputs=tuple(tuple(tensor.dtype for tensor in site) for site in notes.inputs),
        starts=_distinct(notes.starts, []),
        referenced=_distinct([*notes.sources, *notes.private], read),
        beside_starts=_distinct([*notes.sources, *final], [*notes.starts, *notes.inputs[-1]]),
        private=_distinct(notes.private, [*read, *final]),
        private_final=_distinct(final, read),
    )


def _distinct(tensors: Iterable[Tensor], known: Iterable[Tensor]) -> int:
    known = {id(tensor) for tensor in known}
    distinct = {id(tensor): tensor for tensor in tensors}
    return sum(tensor.nbytes for key, tensor in distinct.items() if key not in known)
