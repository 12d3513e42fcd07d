"""`cumulative-replacement`: replacement routing over cumulative states, for the source-by-routing ablation.

    sources of site s: h_0 .. h_s        x_s = r_s        h_{s+1} = h_s + y_s

    h_0 ──┬── softmax ──> r_s ── f_s ── y_s
    h_1 ──┤
    h_s ──┘

The hidden states are the stream itself, so that what a sublayer reads is the only difference to
`cumulative-additive`.
"""

from torch import Tensor

from lightning_dar.ops import History
from lightning_dar.residual.base import DepthRouting, Shape
from lightning_dar.residual.registry import register_residual
from lightning_dar.residual.routed import QueryInit, RoutedResidual

State = tuple[Tensor, History]


@register_residual("cumulative-replacement")
class CumulativeReplacement(RoutedResidual):
    """State: the stream, and the history of its states."""

    def __init__(self, shape: Shape, *, query_init: QueryInit = "zeros"):
        """
        Args:
            shape: sizes of the network.
            query_init: `zeros` or `normal` (std 0.02).
        """
        super().__init__(shape, num_reads=shape.num_sites, query_init=query_init)

    def start(self, embeddings: Tensor) -> State:
        return embeddings, self.open_history().append(embeddings)

    def read(self, state: State, site: int) -> Tensor:
        return state[1].read(site)

    def write(self, state: State, y: Tensor, site: int) -> State:
        stream, history = state
        stream = stream + y
        return stream, history.append(stream, after=site)

    def finish(self, state: State) -> Tensor:
        return state[0]

    def routing(self, state: State, site: int) -> DepthRouting | None:
        return None if site == self.shape.num_sites else DepthRouting(*state[1].lay_open(site))
