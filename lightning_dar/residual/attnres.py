"""`attnres`: Attention Residuals, the read *replaces* the stream.

    granularity `block`      sources: the finished blocks b_1 .. b_m and the running partial p
    granularity `sublayer`   sources: the embedding and every earlier sublayer's output

    x_s = r_s        at the first site of a block: append p, then p = y_s;  else p = p + y_s

    b_1 ──┬── softmax ──> r_s ── f_s ── y_s
    b_2 ──┤                              │
    p   ──┘ <──────────── + <────────────┘

The hidden states come from a read of their own, the last row of the queries. Attention Residuals report,
arXiv 2603.15031.
"""

from typing import Literal

from torch import Tensor

from lightning_dar.ops import History
from lightning_dar.residual.base import DepthRouting, Shape, layers_per_block
from lightning_dar.residual.registry import register_residual
from lightning_dar.residual.routed import QueryInit, RoutedResidual

State = tuple[Tensor, History]


@register_residual("attnres")
class AttnRes(RoutedResidual):
    """Replacement routing over blocks or sublayers. State: the running partial p, and the history."""

    def __init__(
        self,
        shape: Shape,
        *,
        granularity: Literal["block", "sublayer"] = "block",
        num_blocks: int = 4,
        query_init: QueryInit = "zeros",
    ):
        """
        Args:
            shape: sizes of the network.
            granularity: `block`, or `sublayer` ("full": every sublayer's output is a source).
            num_blocks: blocks of ceil(L / num_blocks) layers, 1 to L; only for granularity `block`.
            query_init: `zeros` or `normal` (std 0.02).
        """
        super().__init__(shape, num_reads=shape.num_sites + 1, query_init=query_init)
        self.sites_per_block = 2 * layers_per_block(shape, num_blocks) if granularity == "block" else 1
        self.num_sources = -(-shape.num_sites // self.sites_per_block)

    def start(self, embeddings: Tensor) -> State:
        return embeddings, self.open_history(self.num_sources)

    def read(self, state: State, site: int) -> Tensor:
        partial, history = state
        return history.read(site, current=partial)

    def write(self, state: State, y: Tensor, site: int) -> State:
        partial, history = state
        if site % self.sites_per_block == 0:
            start = y if self.sites_per_block == 1 else y.to(partial.dtype)  # a sum keeps the stream's precision
            return start, history.append(partial, after=site)
        return partial + y, history

    def finish(self, state: State) -> Tensor:
        return self.read(state, self.shape.num_sites)

    def routing(self, state: State, site: int) -> DepthRouting:
        partial, history = state
        return DepthRouting(*history.lay_open(site, current=partial))
