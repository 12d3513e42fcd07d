"""`standard`: the plain pre-norm residual stream.

x_s = h_s        h_{s+1} = h_s + y_s

h ──┬── f_s ── + ──> h
    └──────────┘
"""

from torch import Tensor

from lightning_dar.residual.base import Residual
from lightning_dar.residual.registry import register_residual


@register_residual("standard")
class Standard(Residual):
    """No routing and no parameters; the state is the stream."""

    traceable = True

    def start(self, embeddings: Tensor) -> Tensor:
        return embeddings

    def read(self, state: Tensor, site: int) -> Tensor:
        return state

    def write(self, state: Tensor, y: Tensor, site: int) -> Tensor:
        return state + y

    def finish(self, state: Tensor) -> Tensor:
        return state
