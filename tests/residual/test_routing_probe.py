"""How the probe adds up over ranks and over the deepest sites; test_probe.py has what it measures."""

import math

import pytest
import torch
from tiny import scramble, tiny_model, tokens

from lightning_dar.residual.probe import RoutingProbe, SiteRouting, mean_sharpness


def test_ranks_add_up():
    model, batch = scramble(tiny_model("delta-sublayer")), tokens(3, 7)

    def measured(rows):
        probe = RoutingProbe(model.residual, num_sites=8)
        model(rows, residual=probe)
        return probe

    together, first, second = measured(batch), measured(batch[:1]), measured(batch[1:])
    sums_of_second = iter(second._sums.values())
    first.reduce(lambda sums: sums + next(sums_of_second))
    assert first.sites.keys() == together.sites.keys() == set(range(1, 8))
    for site, expected in together.sites.items():
        assert first.sites[site].tokens == 21
        assert first.sites[site].sharpness == pytest.approx(expected.sharpness)
        assert first.sites[site].entropy == pytest.approx(expected.entropy)
        torch.testing.assert_close(first.sites[site].mean_weights, expected.mean_weights)


def site_with(sharpness):
    return SiteRouting(tokens=1.0, max_sum=sharpness, entropy_sum=0.0, weight_sums=torch.ones(2))


@pytest.mark.parametrize("num_sites", [6, 8, 18, 24, 36, 72])
def test_deepest_third(num_sites):
    deep = math.floor(num_sites / 3)
    sites = {site: site_with(1.0 if site >= num_sites - deep else 0.0) for site in range(num_sites)}
    assert mean_sharpness(sites, num_sites, deepest=1 / 3) == 1.0
    assert mean_sharpness(sites, num_sites) == pytest.approx(deep / num_sites)
    sites[num_sites - deep] = site_with(0.0)  # the first of the third counts
    assert mean_sharpness(sites, num_sites, deepest=1 / 3) == pytest.approx((deep - 1) / deep)
