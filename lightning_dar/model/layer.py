"""One layer: attention and MLP, each of which reads, computes and writes.

state ── read ─> attention ─ write ─┬─ read ─> MLP ─ write ──> state
  └────────────────────────────────>┴────────────────────────>
"""

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from lightning_dar.model.sublayer import Sublayer
from lightning_dar.residual.base import Residual

SUBLAYERS = ("attention", "mlp")
"""What a layer is made of, in this order."""


def layer_sites(num_layers: int) -> list[tuple[int, int]]:
    """By layer, the sites of its sublayers."""
    return [(2 * layer, 2 * layer + 1) for layer in range(num_layers)]


class Layer(nn.Module):
    """Attention and MLP at two `sites` of a transformer.

    Its sublayers are registered in the transformer alone, by site, and looked up there: so a parameter's name does
    not depend on layers, and a sublayer that is wrapped in place is the one that runs.

    Attributes:
        recompute: whether the backward runs the whole layer again, its reads and writes included.
    """

    recompute: bool = False

    def __init__(self, sublayers: nn.ModuleList, sites: tuple[int, int]):
        super().__init__()
        self.sites = sites
        self._all = (sublayers,)  # in a tuple, or it would be registered here too

    @property
    def attention(self) -> Sublayer:
        return self._all[0][self.sites[0]]

    @property
    def mlp(self) -> Sublayer:
        return self._all[0][self.sites[1]]

    def forward(self, state: Any, residual: Residual, context: Any) -> Any:
        """The state of the residual strategy before the layer -> that after it."""
        if self.recompute:
            return checkpoint(self._run, state, residual, context, use_reentrant=False)
        return self._run(state, residual, context)

    def _run(self, state: Any, residual: Residual, context: Any) -> Any:
        for site in self.sites:
            x = residual.read(state, site)
            y = self._all[0][site](x, context)
            if isinstance(y, tuple):
                y, loss = y
                if context.auxiliary is not None:
                    context.auxiliary[site] = loss  # by site: a layer that runs again says the same again
            state = residual.write(state, y, site)
        return state
