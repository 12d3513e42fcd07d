"""`delta-sublayer`: every sublayer reads all earlier deltas, and adds what it reads to the stream.

    sources of site s >= 1: e, y_0 .. y_{s-1}        x_s = h_s + c_s r_s        h_{s+1} = h_s + y_s

    e ───────┬──────────────┬───────────> r_s
    y_0 ─────┼──────────────┤             │ c_s
    y_1 ─────┴── softmax ───┘             v
    h ──┬──────────────────────────────── + ── f_s ── y_s (the next source)
        └───────────────────────────────── + <────────┘ ──> h

Per-sublayer Delta Attention Residuals, arXiv 2605.18855.
"""

from torch import Tensor

from lightning_dar.ops import History
from lightning_dar.residual.registry import register_residual
from lightning_dar.residual.routed import AdditiveResidual

State = tuple[Tensor, History]


@register_residual("delta-sublayer")
class DeltaSublayer(AdditiveResidual):
    """Additive routing over per-sublayer deltas; site 0 has no sources and reads the embedding itself."""

    def start(self, embeddings: Tensor) -> State:
        return embeddings, self.open_history()

    def write(self, state: State, y: Tensor, site: int) -> State:
        stream, history = state
        if site == 0:
            history = history.append(stream, after=site)  # the embedding is source 0, from site 1 on
        return stream + y, history.append(y, after=site)
