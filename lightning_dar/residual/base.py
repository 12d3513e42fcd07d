"""The residual protocol: four verbs that say how sublayers read and write the depth history.

    state = residual.start(embeddings)
    for site, sublayer in enumerate(sublayers):     # attention, mlp, attention, mlp, ...
        x = residual.read(state, site)
        y = sublayer(x, context)
        state = residual.write(state, y, site)
    hidden = residual.finish(state)

State is whatever the strategy needs (one stream, n parallel streams, a growing list), handed along and never
kept on the module.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from lightning_dar.ops import DepthRead


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a strategy may know of the network it wires."""

    num_layers: int
    hidden_size: int
    eps: float = 1e-6
    depth_read: DepthRead = "auto"

    @property
    def num_sites(self) -> int:
        """Sublayers: an attention site at every even index, an MLP site at every odd one."""
        return 2 * self.num_layers


class Residual(nn.Module):
    """Base class of every strategy. Options are the keyword-only arguments of its `__init__`."""

    pre_norm: ClassVar[bool] = True
    """False builds sublayers without their input norm; the strategy then norms where it likes."""

    attention_inputs: ClassVar[int] = 1
    """3 lets `read` return (query, key, value) inputs at attention sites, each with a norm of its own."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape

    def start(self, embeddings: Tensor) -> Any:
        """Embeddings [B, T, D] -> the first state."""
        raise NotImplementedError

    def read(self, state: Any, site: int) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """What the sublayer at `site` sees, [B, T, D] (three of them where `attention_inputs` is 3)."""
        raise NotImplementedError

    def write(self, state: Any, y: Tensor, site: int) -> Any:
        """The state after the sublayer at `site` has put out `y` [B, T, D]."""
        raise NotImplementedError

    def finish(self, state: Any) -> Tensor:
        """The hidden states [B, T, D] that go to the final norm."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Initialises the strategy's own parameters; called once, after the network's."""

    def routing_weights(self, state: Any, site: int) -> Tensor | None:
        """Optional, for diagnostics: the weights [B, T, n] over sources, oldest first, that `read(state, site)`
        would use (site == num_sites stands for `finish`); None where nothing is routed."""
        return None
