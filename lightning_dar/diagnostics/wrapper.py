"""Wrappers of a strategy: the same network, watched or changed on the way.

    model(input_ids, residual=Wrapper(model.residual, num_sites=len(model.sublayers)))

No flag on the strategy, nothing held between measurements; training forwards never pass through one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_dar.residual.base import DepthRouting, Residual


class Watched:
    """Runs `residual` unchanged and shows every read that routes to `seen`. The final read of a strategy that has
    one counts as site `num_sites`."""

    def __init__(self, residual: Residual, num_sites: int):
        self.residual, self.num_sites = residual, num_sites

    def seen(self, site: int, routing: DepthRouting, tokens: Tensor | None = None) -> None:
        """Called before the read at `site`, without gradient. `tokens`: as `Together` takes them."""

    def start(self, embeddings: Tensor) -> Any:
        return self.residual.start(embeddings)

    def read(self, state: Any, site: int) -> Any:
        self._show(state, site)
        return self.residual.read(state, site)

    def write(self, state: Any, y: Tensor, site: int) -> Any:
        return self.residual.write(state, y, site)

    def finish(self, state: Any) -> Tensor:
        self._show(state, self.num_sites)
        return self.residual.finish(state)

    @torch.no_grad()
    def _show(self, state: Any, site: int) -> None:
        routing = self.residual.routing(state, site)
        if routing is not None:
            self.seen(site, routing)


class Together(Watched):
    """Several probes of one forward: each read is laid open once, and shown to all.

    Args:
        probes: of the same network.
        tokens: int64 [N], which of the B * T tokens are counted, such as those that are no padding; default: all.
    """

    def __init__(self, probes: Sequence[Watched], tokens: Tensor | None = None):
        super().__init__(probes[0].residual, probes[0].num_sites)
        self.probes, self.tokens = probes, tokens

    def seen(self, site: int, routing: DepthRouting, tokens: Tensor | None = None) -> None:
        for probe in self.probes:
            probe.seen(site, routing, self.tokens)


def lays_open(residual: Residual) -> bool:
    """Whether the strategy shows its routing: `standard` and some plugins have none."""
    return type(residual).routing is not Residual.routing
