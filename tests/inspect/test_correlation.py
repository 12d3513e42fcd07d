"""Mass against importance: within sites, pooled, and how sure; against plain loops over the same draws."""

from types import SimpleNamespace

import numpy as np
import pytest

from lightning_dar.diagnostics.results import ChangedLoss, Source, WithinSites
from lightning_dar.diagnostics.routing import SiteGains, rank_correlations
from lightning_dar.diagnostics.statistics import RESAMPLES


def correlations(*sites, units=10, everywhere=()):
    """Of sites given as (masses, gains [n, units] or [n])."""
    made = []
    for masses, gains in sites:
        by_unit = np.asarray(gains, dtype=float)
        by_unit = by_unit if by_unit.ndim == 2 else np.tile(by_unit[:, None] / units, units)
        made.append(SiteGains(masses=masses, by_unit={"renormalised": by_unit}))
    text = SimpleNamespace(unit_tokens=np.full(units, 5))
    return rank_correlations(made, everywhere, ["renormalised"], text)


def test_sites_of_few_sources_do_not_count_as_agreement():
    """Few sources have large masses and large gains; inside each site the order is the opposite."""
    few, many = ([0.5, 0.3, 0.2], [8.0, 9.0, 10.0]), ([0.3, 0.25, 0.2, 0.15, 0.1], [1.0, 2.0, 3.0, 4.0, 5.0])
    found = correlations(few, many)
    assert found.within_sites["renormalised"] == WithinSites(value=-1, low=-1, high=-1, sites=2)
    assert found.pooled["renormalised"] > -0.2


def test_sites_of_two_sources_are_left_out_of_the_mean():
    found = correlations(([0.9, 0.1], [1.0, 2.0]), ([0.5, 0.3, 0.2], [3.0, 2.0, 1.0]), ([0.5, 0.3, 0.2], [1.0, 1, 1]))
    assert found.within_sites["renormalised"].value == 1
    assert found.within_sites["renormalised"].sites == 1, "two are too few, and equal gains order nothing"
    alone = correlations(([0.9, 0.1], [1.0, 2.0]))
    assert alone.within_sites["renormalised"] == WithinSites(value=None, low=None, high=None, sites=0)


def test_the_interval_is_that_of_the_same_draws_in_a_loop():
    draw, masses = np.random.default_rng(5), [[0.4, 0.35, 0.25], [0.1, 0.2, 0.3, 0.4]]
    gains = [draw.normal(size=(len(site), 12)) for site in masses]
    found = correlations(*zip(masses, gains, strict=True), units=12).within_sites["renormalised"]
    counts = np.random.default_rng(0).multinomial(12, [1 / 12] * 12, size=RESAMPLES)
    means = []
    for row in counts:
        by_site = []
        for site, by_unit in zip(masses, gains, strict=True):
            ranks = [np.argsort(np.argsort(values)) for values in (site, by_unit @ row)]
            by_site.append(np.corrcoef(*ranks)[0, 1])
        means.append(sum(by_site) / 2)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))


def test_few_units_give_no_interval():
    found = correlations(([0.5, 0.3, 0.2], [3.0, 2.0, 1.0]), units=7).within_sites["renormalised"]
    assert found == WithinSites(value=1, low=None, high=None, sites=1)


def test_sources_everywhere():
    def source(mass, gain):
        loss = None if gain is None else ChangedLoss(loss=2.0 + gain, difference=gain)
        return Source(source=0, label="e", mass=mass, renormalised=loss, removed=None)

    found = correlations(everywhere=[source(0.1, 3), source(0.2, 2), source(0.7, 5), source(0.9, None)])
    assert found.everywhere["renormalised"] == pytest.approx(0.5)
