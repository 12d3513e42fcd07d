"""What each site reads, as plain numbers: routing weights, strength of the routed branch, redundancy of the sources."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_dar.diagnostics.probe import STATISTICS, RoutingProbe, SiteRouting, depth_third
from lightning_dar.diagnostics.stream import SiteStream, StreamProbe
from lightning_dar.diagnostics.wrapper import Together, Watched
from lightning_dar.inspect.held_out import HeldOut
from lightning_dar.inspect.result import Means, Routing, SiteReads
from lightning_dar.inspect.subject import Subject
from lightning_dar.model.layer import SUBLAYERS
from lightning_dar.residual.base import DepthRouting, Residual

STREAM = ("branch_norm", "stream_norm", "strength", "gate", "redundancy")


@dataclass(frozen=True, kw_only=True)
class Reads:
    """What was measured of the reads of a network."""

    routing: dict[int, SiteRouting]  # sites of two or more sources
    stream: dict[int, SiteStream]  # sites that read any
    labels: list[str]  # of the sources, oldest first; a site has the first n of them
    num_sites: int

    @property
    def are_additive(self) -> bool:
        """Whether every read is added to the stream."""
        return all(site.stream_norm is not None for site in self.stream.values())

    def mean_weights(self, site: int) -> list[float]:
        """[n]; a lone source has all the weight."""
        return self.routing[site].mean_weights.tolist() if site in self.routing else [1.0]


@torch.no_grad()
def measure_reads(subject: Subject, held_out: HeldOut, done: Callable[[int], Any]) -> Reads:
    """Reads every window once; `done` is told how many have been read."""
    residual, num_sites = subject.model.residual, subject.num_sites
    routing, stream = RoutingProbe(residual, num_sites), StreamProbe(residual, num_sites)
    sources = _SourceNames(residual, num_sites)
    together = Together([routing, stream, sources])
    for batch, _ in held_out.batches():
        batch = {name: ids.to(subject.device) for name, ids in batch.items()}
        with subject.autocast():
            subject.model(
                batch["input_ids"], batch.get("document_ids"), head=lambda hidden, _: hidden, residual=together
            )
        done(len(batch["input_ids"]))
    return Reads(routing=routing.sites, stream=stream.sites, labels=sources.labels(), num_sites=num_sites)


def routing_numbers(reads: Reads) -> Routing:
    """The part of the report that says how the sites read; means over the sites of two or more sources."""
    sites = [
        SiteReads(
            site=site,
            kind=site_kind(site, reads.num_sites),
            third=depth_third(site, reads.num_sites),
            num_sources=stream.num_sources,
            **{name: getattr(reads.routing[site], name) if site in reads.routing else None for name in STATISTICS},
            **{name: getattr(stream, name) for name in STREAM},
            mean_weights=reads.mean_weights(site),
        )
        for site, stream in reads.stream.items()
    ]
    routed = [row for row in sites if row.num_sources > 1]
    deep = [row for row in routed if row.third == "deep"]
    return Routing(sources=reads.labels, sites=sites, means=_means(routed), means_deep=_means(deep))


def site_kind(site: int, num_sites: int) -> str:
    return "finish" if site == num_sites else SUBLAYERS[site % len(SUBLAYERS)]


def _means(sites: list[SiteReads]) -> Means:
    columns = {name: [getattr(site, name) for site in sites] for name in STATISTICS}
    columns["uniform_sharpness"] = [1 / site.num_sources for site in sites]
    return Means(**{name: sum(values) / len(values) if values else None for name, values in columns.items()})


class _SourceNames(Watched):
    """Notes which source is the embedding, and names the sources by it."""

    def __init__(self, residual: Residual, num_sites: int):
        super().__init__(residual, num_sites)
        self._embedding: int | None = None
        self._most = 0

    def seen(self, site: int, routing: DepthRouting, tokens: Tensor | None = None) -> None:
        if len(routing.sources) > self._most:
            self._most, self._embedding = len(routing.sources), routing.embedding

    def labels(self) -> list[str]:
        """`e` for the embedding, `null` for what lies before it (`null 0`, `null 1` ... if that is several), and the
        others by number."""
        before = self._embedding or 0
        nulls = ["null"] if before == 1 else [f"null {number}" for number in range(before)]
        named = nulls if self._embedding is None else [*nulls, "e"]
        return [*named, *map(str, range(len(named), self._most))]
