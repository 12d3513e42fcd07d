"""What every sublayer is: attention, and each kind of MLP. It describes itself, so that nothing else has to know it."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.costs import Saving
from lightning_dar.model.kv_cache import KVCache

Inputs = Tensor | tuple[Tensor, Tensor, Tensor]


class Context(NamedTuple):
    """What every sublayer of one forward shares."""

    cos: Tensor
    sin: Tensor
    mask: Any
    cache: KVCache | None = None

    auxiliary: dict[int, Tensor] | None = None
    """By site, the auxiliary losses of this forward, filled as the layers run; None where nobody asks."""


class Sublayer(nn.Module):
    """Base class. A subclass has its modules, `compute`, and what it says of its costs.

    Attributes:
        outputs: names of the modules that write to the residual stream; their weights start smaller.
        recompute: whether the backward runs `compute` again instead of holding what it saves.
    """

    outputs: ClassVar[tuple[str, ...]] = ()
    recompute: bool = False

    def __init__(self, sizes: TransformerConfig):
        super().__init__()
        self.sizes = sizes

    def forward(self, x: Inputs, context: Any) -> Tensor | tuple[Tensor, Tensor]:
        """[B, T, D] -> [B, T, D], with an auxiliary loss beside it where `compute` gives one."""
        if self.recompute:
            return checkpoint(self.compute, x, context, use_reentrant=False)
        return self.compute(x, context)

    def compute(self, x: Inputs, context: Any) -> Tensor | tuple[Tensor, Tensor]:
        """What the sublayer adds to the stream, [B, T, D]; or that and an auxiliary loss, a scalar that is added to
        the mean loss of a token as it is."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        for name, module in self.named_modules():
            self.reset_module(name, module)

    def reset_module(self, name: str, module: nn.Module) -> None:
        """Initialises the parameters of one module of the sublayer, `""` being itself, but none of its submodules."""
        if name in self.outputs:
            reset_module(module, self.sizes.output_std(module.in_features))
        else:
            reset_module(module, self.sizes.init_std)

    def decays(self, name: str) -> bool:
        """Whether the parameter of this name is a weight matrix: decayed, and trained by Muon where that is chosen."""
        return is_matrix(name)

    @classmethod
    def product_weights(cls, sizes: TransformerConfig) -> int:
        """Weights of the matrix products that every token passes."""
        raise NotImplementedError

    @classmethod
    def saved_bytes(cls, sizes: TransformerConfig, inputs: tuple[torch.dtype, ...], saving: Saving) -> int:
        """What it saves for the backward: its inputs, of these dtypes, and all but its output."""
        raise NotImplementedError

    @classmethod
    def gradient_bytes(cls, sizes: TransformerConfig, saving: Saving) -> int:
        """The gradients of its inner tensors that its backward holds at a time."""
        raise NotImplementedError


def is_matrix(name: str) -> bool:
    """Whether the name is that of a projection's weight. By the name alone: sharded, a matrix may lie flat."""
    return name.endswith("_proj.weight")


def reset_module(module: nn.Module, std: float) -> None:
    """Matrices and embeddings normal, biases zero, norms one."""
    if isinstance(module, nn.RMSNorm):
        nn.init.ones_(module.weight)
    elif isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=std)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)


def norm_of(size: int, eps: float, wanted: bool) -> nn.Module:
    return nn.RMSNorm(size, eps) if wanted else nn.Identity()
