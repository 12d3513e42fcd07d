"""A layer and its two sublayers: attention and MLP, with the reads and writes of the residual around them.

Only attention looks back over tokens. The depth read is per token, so no residual strategy needs a cache.

state ── read ─> attention ─ write ─┬─ read ─> MLP ─ write ──> state
  └────────────────────────────────>┴────────────────────────>
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.costs import Saving
from lightning_dar.residual.base import Residual


class KVCache:
    """State of one generation, handed along with each forward and never kept on the model."""

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> keys, values [B, capacity, K, head_dim]
        self._lengths: dict[int, int] = {}

    @property
    def length(self) -> int:
        """Tokens of the finished forwards; the position of the next token."""
        return min(self._lengths.values(), default=0)

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds [B, T, K, head_dim] of a layer; returns all keys and values of it, [B, length + T, K, head_dim]."""
        start = self._lengths.get(layer, 0)
        end = start + k.shape[1]
        if layer not in self._buffers or end > self._buffers[layer][0].shape[1]:
            self._buffers[layer] = self._grown(layer, k, end), self._grown(layer, v, end, index=1)
        self._lengths[layer] = end
        for buffer, new in zip(self._buffers[layer], (k, v), strict=True):
            buffer[:, start:end] = new
        keys, values = self._buffers[layer]
        return keys[:, :end], values[:, :end]

    def _grown(self, layer: int, like: Tensor, length: int, index: int = 0) -> Tensor:
        """A buffer with room for twice the tokens, so that all copies together stay linear in the length."""
        batch, _, *rest = like.shape
        buffer = torch.empty(batch, 2 * length, *rest, dtype=like.dtype, device=like.device)
        start = self._lengths.get(layer, 0)
        if start:
            buffer[:, :start] = self._buffers[layer][index][:, :start]
        return buffer


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


SUBLAYERS = ("attention", "mlp")
"""What a layer is made of, in this order."""


def layer_sites(num_layers: int) -> list[tuple[int, int]]:
    """The sites of the two sublayers of each layer."""
    return [(2 * layer, 2 * layer + 1) for layer in range(num_layers)]


class Layer(nn.Module):
    """Attention and MLP at two `sites` of a transformer.

    Its sublayers are registered in the transformer alone, by site, and looked up there: so a parameter's name does
    not depend on layers, and a sublayer that is wrapped in place is the one that runs.

    Attributes:
        recompute: whether the backward runs the whole layer again, its reads and writes included.
    """

    recompute: bool = False

    def __init__(self, sublayers: nn.ModuleList, sites: tuple[int, int]):
        super().__init__()
        self.sites = sites
        self._all = (sublayers,)  # in a tuple, or it would be registered here too

    @property
    def attention(self) -> Sublayer:
        return self._all[0][self.sites[0]]

    @property
    def mlp(self) -> Sublayer:
        return self._all[0][self.sites[1]]

    def forward(self, state: Any, residual: Residual, context: Any) -> Any:
        """The state of the residual strategy before the layer -> that after it."""
        if self.recompute:
            return checkpoint(self._run, state, residual, context, use_reentrant=False)
        return self._run(state, residual, context)

    def _run(self, state: Any, residual: Residual, context: Any) -> Any:
        for site in self.sites:
            x = residual.read(state, site)
            y = self._all[0][site](x, context)
            if isinstance(y, tuple):
                y, loss = y
                if context.auxiliary is not None:
                    context.auxiliary[site] = loss  # by site: a layer that runs again says the same again
            state = residual.write(state, y, site)
        return state
