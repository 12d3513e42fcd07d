"""`delta-block`: every sublayer reads the deltas of the finished blocks, and adds what it reads.

    sources of site s >= 1: e and every finished block's h(after) - h(before)
    x_s = h_s + c_s r_s        h_{s+1} = h_s + y_s

    h ─┬─[ block 1: k layers ]─┬─[ block 2: k layers ]─┬─> h
       │                       │                       │
       e                 h(after) - h(before)    h(after) - h(before)        sources of all later sites

Block Delta Attention Residuals, arXiv 2605.18855. With `block_delta: released` the sources are those of the
authors' released code: at the first layer of each block, after its attention has read, h minus the *previous
source* is appended (and e at layer 0). The third source so still holds e; checkpoints trained that way need it.
"""

from typing import Literal

from torch import Tensor

from lightning_dar.ops import History
from lightning_dar.residual.base import Shape, layers_per_block
from lightning_dar.residual.registry import register_residual
from lightning_dar.residual.routed import AdditiveResidual, Gate, QueryInit

State = tuple[Tensor, Tensor, History]


@register_residual("delta-block")
class DeltaBlock(AdditiveResidual):
    """Additive routing over block deltas. State: the stream, what the next delta is measured from, the history."""

    def __init__(
        self,
        shape: Shape,
        *,
        num_blocks: int = 4,
        block_delta: Literal["definition", "released"] = "definition",
        gate: Gate = "none",
        null_source: bool = False,
        query_init: QueryInit = "zeros",
    ):
        """
        Args:
            shape: sizes of the network.
            num_blocks: blocks of ceil(L / num_blocks) layers, 1 to L.
            block_delta: `definition`, or `released` to reproduce the authors' released code.
            gate: see `AdditiveResidual`.
            null_source: see `AdditiveResidual`.
            query_init: see `AdditiveResidual`.
        """
        super().__init__(shape, gate=gate, null_source=null_source, query_init=query_init)
        self.sites_per_block = 2 * layers_per_block(shape, num_blocks)
        self.num_sources = -(-shape.num_sites // self.sites_per_block)
        self.block_delta = block_delta

    def start(self, embeddings: Tensor) -> State:
        return embeddings, embeddings, self.open_history(self.num_sources)

    def write(self, state: State, y: Tensor, site: int) -> State:
        stream, origin, history = state
        if site == 0:
            return stream + y, stream, history.append(stream, after=site)  # the embedding is source 0
        if self.block_delta == "released":
            return self._write_released(state, y, site)
        after = stream + y
        is_last = site + 1 == self.shape.num_sites  # nobody reads the last block's delta
        if (site + 1) % self.sites_per_block or is_last:
            return after, origin, history
        return after, after, history.append(after - origin, after=site)

    def _write_released(self, state: State, y: Tensor, site: int) -> State:
        stream, previous_source, history = state
        if site % self.sites_per_block == 0:
            previous_source = stream - previous_source
            history = history.append(previous_source, after=site)
        return stream + y, previous_source, history
