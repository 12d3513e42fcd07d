"""Does routing mass tell importance? Rank correlations of the weight that a source has and of what its loss costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lightning_dar.diagnostics.bootstrap import MIN_UNITS, percentile_intervals, resampled_means
from lightning_dar.diagnostics.rank_correlation import spearman, spearman_of_columns
from lightning_dar.inspect.held_out import HeldOut
from lightning_dar.inspect.result import RankCorrelations, Source, WithinSites

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
