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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_dar.errors import UsageError
from lightning_dar.ops import DepthRead
from lightning_dar.ops.torch_private import opaque


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


@dataclass(frozen=True)
class DepthRouting:
    """One read laid open for diagnostics: base + scale * sum_i weights_i sources_i."""

    weights: Tensor
    """[B, T, n], at least fp32: non-negative, adding up to 1."""

    sources: Sequence[Tensor]
    """n tensors [B, T, D], oldest first."""

    base: Tensor | None = None
    """[B, T, D], the stream that the read is added to; None where the read replaces it."""

    scale: Tensor | None = None
    """Scalar, the gate; None stands for 1."""

    embedding: int | None = 0
    """Which of the sources is the embedding; None where none is."""

    def branch(self, weights: Tensor | None = None) -> Tensor:
        """scale * sum_i weights_i sources_i [B, T, D], at least fp32; `weights` [B, T, n] replace the read's own."""
        weights = self.weights if weights is None else weights
        total = torch.zeros_like(self.sources[0], dtype=weights.dtype)
        for weight, source in zip(weights.unbind(-1), self.sources, strict=True):
            total = torch.addcmul(total, source.to(total.dtype), weight[..., None])
        return total if self.scale is None else total * self.scale

    def output(self, weights: Tensor | None = None) -> Tensor:
        """What the sublayer would read, [B, T, D]: base + branch, in the dtype of `read`."""
        branch = self.branch(weights)
        if self.base is None:
            return branch.to(self.sources[-1].dtype)
        dtype = torch.promote_types(self.base.dtype, self.sources[-1].dtype)
        return (self.base.to(branch.dtype) + branch).to(dtype)


class Residual(nn.Module):
    """Base class of every strategy. Options are the keyword-only arguments of its `__init__`."""

    pre_norm: ClassVar[bool] = True
    """False builds sublayers without their input norm; the strategy then norms where it likes."""

    attention_inputs: ClassVar[int] = 1
    """3 lets `read` return (query, key, value) inputs at attention sites, each with a norm of its own."""

    traceable: ClassVar[bool] = False
    """True lets torch.compile trace through the four verbs. What depends on the site would be compiled anew for each,
    up to the compiler's limit; opaque verbs leave the sublayers between them to be compiled."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        for verb in ("start", "read", "write", "finish"):
            if verb in vars(cls) and not cls.traceable:
                setattr(cls, verb, opaque(vars(cls)[verb]))

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

    def routing(self, state: Any, site: int) -> DepthRouting | None:
        """Optional, for diagnostics: what `read(state, site)` would do, laid open (site == num_sites stands for
        `finish`); None where nothing is routed. Without gradient."""
        return None


def layers_per_block(shape: Shape, num_blocks: int) -> int:
    """ceil(L / num_blocks). Raises UsageError unless 1 <= num_blocks <= L."""
    if not 1 <= num_blocks <= shape.num_layers:
        raise UsageError(
            f"model.residual.options.num_blocks={num_blocks}: must be from 1 to model.num_layers={shape.num_layers}"
        )
    return -(-shape.num_layers // num_blocks)
