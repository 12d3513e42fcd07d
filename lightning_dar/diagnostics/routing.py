"""How a model routes on held-out text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dar.diagnostics.held_out import HeldOut, Subject
from lightning_dar.diagnostics.interventions import Together, Watched
from lightning_dar.diagnostics.probe import STATISTICS, RoutingProbe, SiteRouting, SiteStream, StreamProbe, depth_third
from lightning_dar.diagnostics.results import Means, RankCorrelations, Routing, SiteReads, Source, WithinSites
from lightning_dar.diagnostics.statistics import (
    MIN_UNITS,
    percentile_intervals,
    resampled_means,
    spearman,
    spearman_of_columns,
)
from lightning_dar.model.layer import SUBLAYERS
from lightning_dar.residual.base import DepthRouting, Residual

MIN_SOURCES = 3  # of a site: two are ordered alike or not, which says nothing


@dataclass(frozen=True, kw_only=True)
class SiteGains:
    """A site's masses [n], and the summed loss that each unit gains without a source, by kind of knock-out: [n, units]
    (a kind that the site does not have is left out)."""

    masses: Sequence[float]
    by_unit: Mapping[str, np.ndarray]


def rank_correlations(
    sites: Sequence[SiteGains], everywhere: Sequence[Source], kinds: Sequence[str], held_out: HeldOut
) -> RankCorrelations:
    """Spearman's, of mass and of what the loss gains, by kind of knock-out.

    `within_sites` is the mean over the sites of three sources or more. `pooled` takes the sources of all sites of two
    or more together: sites with few sources have large masses and large gains, which alone makes it positive.
    `everywhere` compares the sources, each knocked out at all sites.
    """
    return RankCorrelations(
        within_sites={kind: _within_sites(sites, kind, held_out) for kind in kinds},
        pooled={kind: _pooled(sites, kind) for kind in kinds},
        everywhere={kind: _everywhere(everywhere, kind) for kind in kinds},
    )


def _within_sites(sites: Sequence[SiteGains], kind: str, held_out: HeldOut) -> WithinSites:
    """Mean over sites, how many, and its bootstrap interval over the units; the masses are those of the whole text."""
    values, resampled = [], []
    for site in sites:
        if len(site.masses) < MIN_SOURCES:
            continue
        gains = site.by_unit[kind]
        value = spearman(site.masses, gains.sum(1).tolist())
        if value is None:
            continue
        values.append(value)
        if len(held_out.unit_tokens) >= MIN_UNITS:
            means = resampled_means(gains, held_out.unit_tokens)
            resampled.append(np.nan_to_num(spearman_of_columns(np.asarray(site.masses), means)))
    low = high = None
    if resampled:
        ((low, high),) = percentile_intervals(np.mean(resampled, axis=0, keepdims=True)).tolist()
    value = float(np.mean(values)) if values else None
    return WithinSites(value=value, low=low, high=high, sites=len(values))


def _pooled(sites: Sequence[SiteGains], kind: str) -> float | None:
    chosen = [site for site in sites if len(site.masses) > 1]
    masses = [mass for site in chosen for mass in site.masses]
    return spearman(masses, [gain for site in chosen for gain in site.by_unit[kind].sum(1).tolist()])


def _everywhere(sources: Sequence[Source], kind: str) -> float | None:
    having = [(source.mass, loss.difference) for source in sources if (loss := getattr(source, kind)) is not None]
    return spearman([mass for mass, _ in having], [gain for _, gain in having])


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
