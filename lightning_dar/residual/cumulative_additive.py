"""`cumulative-additive`: additive routing over cumulative states, for the source-by-routing ablation.

    sources of site s: h_0 .. h_s        x_s = h_s + c_s r_s        h_{s+1} = h_s + y_s

    h_0 ──┬── softmax ──> r_s
    h_1 ──┤                │ c_s
    h_s ──┴─────────────── + ── f_s ── y_s

Against `delta-sublayer` only the sources differ; against `cumulative-replacement` only the routing.
"""

from torch import Tensor

from lightning_dar.ops import History
from lightning_dar.residual.registry import register_residual
from lightning_dar.residual.routed import AdditiveResidual

State = tuple[Tensor, History]


@register_residual("cumulative-additive")
class CumulativeAdditive(AdditiveResidual):
    """Every state of the stream, the current one included, is a source."""

    def start(self, embeddings: Tensor) -> State:
        return embeddings, self.open_history().append(embeddings)

    def write(self, state: State, y: Tensor, site: int) -> State:
        stream, history = state
        stream = stream + y
        return stream, history.append(stream, after=site)
