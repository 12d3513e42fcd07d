"""Measuring routing: a wrapper of any strategy that wires the same network and watches the weights on the way.

    probe = RoutingProbe(model.residual, num_sites=len(model.sublayers))
    model(input_ids, residual=probe)
    probe.sites[5].sharpness

No flag on the strategy, nothing held between measurements; training forwards never pass through it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dar.diagnostics.wrapper import Watched
from lightning_dar.residual.base import DepthRouting, Residual


@dataclass
class SiteRouting:
    """Sums over tokens of one site's routing weights."""

    tokens: float
    max_sum: float
    entropy_sum: float
    weight_sums: Tensor  # [n]

    @property
    def num_sources(self) -> int:
        return len(self.weight_sums)

    @property
    def sharpness(self) -> float:
        """Mean over tokens of the largest routing weight, from 1/n (uniform) to 1."""
        return self.max_sum / self.tokens

    @property
    def entropy(self) -> float:
        """Mean over tokens of H / log n, from 0 (one source) to 1 (uniform)."""
        return self.entropy_sum / (self.tokens * math.log(self.num_sources))

    @property
    def mean_weights(self) -> Tensor:
        """[n], the mean routing weight of each source."""
        return self.weight_sums / self.tokens


class RoutingProbe(Watched):
    """Runs `residual` unchanged and accumulates, over any number of forwards, a `SiteRouting` per site.

    Sites that read fewer than two sources are left out: there is nothing to route. The final read of a strategy
    that has one counts as site `num_sites`.
    """

    def __init__(self, residual: Residual, num_sites: int):
        super().__init__(residual, num_sites)
        self._sums: dict[int, Tensor] = {}  # site -> [3 + n]: tokens, max, entropy, weights

    @property
    def sites(self) -> dict[int, SiteRouting]:
        """What was measured, by site."""
        return {
            site: SiteRouting(*(value.item() for value in sums[:3]), sums[3:])
            for site, sums in sorted(self._sums.items())
        }

    def reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Adds up the ranks: `sum_over_ranks` maps a float64 tensor on the CPU to its sum over all of them."""
        self._sums = {site: sum_over_ranks(sums) for site, sums in self._sums.items()}

    def seen(self, site: int, routing: DepthRouting) -> None:
        weights = routing.weights.flatten(0, -2)
        if weights.shape[-1] < 2:
            return
        measured = torch.stack([weights.amax(-1).sum(), torch.special.entr(weights).sum(), *weights.sum(0)])
        sums = torch.cat([torch.tensor([len(weights)]), measured.cpu()]).double()
        self._sums[site] = self._sums[site] + sums if site in self._sums else sums


def mean_sharpness(sites: dict[int, SiteRouting], num_sites: int, deepest: float = 1.0) -> float | None:
    """Sharpness averaged over the deepest share of the sites (1/3: the deepest third); None if none is routed."""
    first = num_sites - num_sites * deepest
    values = [routing.sharpness for site, routing in sites.items() if site >= first]
    return sum(values) / len(values) if values else None
