"""What the depth-routed strategies share: the routing parameters, stacked over reads, and the two routings."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_dar.ops import History, open_history
from lightning_dar.residual.base import DepthRouting, Residual, Shape

QueryInit = Literal["zeros", "normal"]
Gate = Literal["none", "alpha"]


class RoutedResidual(Residual):
    """Owns a query and a key-norm gain per read, both [reads, D].

    One stacked parameter instead of one a layer: sharding a sublayer never shards a query that another site
    needs, and a site that reads nothing leaves no parameter without a gradient.
    """

    def __init__(self, shape: Shape, *, num_reads: int, query_init: QueryInit):
        super().__init__(shape)
        self.query_init = query_init
        self.query = nn.Parameter(torch.empty(num_reads, shape.hidden_size))
        self.gain = nn.Parameter(torch.empty(num_reads, shape.hidden_size))

    def reset_parameters(self) -> None:
        """Zero queries read uniformly; `normal` (std 0.02) is what the released from-scratch runs did."""
        if self.query_init == "zeros":
            nn.init.zeros_(self.query)
        else:
            nn.init.normal_(self.query, std=0.02)
        nn.init.ones_(self.gain)

    def open_history(self, max_sources: int | None = None) -> History:
        """The empty history of one forward pass, for `max_sources` sources (default: one a read)."""
        return open_history(
            self.query, self.gain, self.shape.eps, backend=self.shape.depth_read, max_sources=max_sources
        )


class AdditiveResidual(RoutedResidual):
    """x_s = h_s + c_s r_s: the stream itself is never changed by a read.

    The state of a subclass is a tuple that starts with the stream h and ends with the history.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        gate: Gate = "none",
        null_source: bool = False,
        query_init: QueryInit = "zeros",
    ):
        """
        Args:
            shape: sizes of the network.
            gate: `alpha` makes c_s a learned scalar a site, zero at the start: the network then is the standard
                one at step 0, bit for bit, and the gate has a gradient from the first step. `none`: c_s = 1.
            null_source: puts a learned vector a site (zero at the start) before the sources, site 0 included. Not
                an identity at the start: zero queries weigh uniformly, so the mean of the sources is added. With
                `gate: alpha` site 0, which reads nothing else, stays at zero: gate and vector scale each other.
            query_init: `zeros` or `normal` (std 0.02).
        """
        super().__init__(shape, num_reads=shape.num_sites, query_init=query_init)
        self.gate = nn.Parameter(torch.empty(shape.num_sites)) if gate == "alpha" else None
        self.null_source = nn.Parameter(torch.empty(shape.num_sites, shape.hidden_size)) if null_source else None

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for zero in (self.gate, self.null_source):
            if zero is not None:
                nn.init.zeros_(zero)

    def read(self, state: Any, site: int) -> Tensor:
        stream, history = state[0], state[-1]
        if not self._reads(history):
            return stream
        gate = None if self.gate is None else self.gate[site]
        return history.read(site, stream=stream, gate=gate, null=self._null(stream, site))

    def finish(self, state: Any) -> Tensor:
        return state[0]

    def routing(self, state: Any, site: int) -> DepthRouting | None:
        stream, history = state[0], state[-1]
        if site == self.shape.num_sites or not self._reads(history):
            return None
        null = self._null(stream, site)
        gate = None if self.gate is None else self.gate[site].detach()
        embedding = None if len(history) == 0 else 0 if null is None else 1
        return DepthRouting(*history.lay_open(site, null=null), base=stream, scale=gate, embedding=embedding)

    def _reads(self, history: History) -> bool:
        return len(history) > 0 or self.null_source is not None

    def _null(self, stream: Tensor, site: int) -> Tensor | None:
        return None if self.null_source is None else self.null_source[site].expand_as(stream)
