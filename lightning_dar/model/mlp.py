"""The MLP, and other kinds of it by name."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.costs import Saving
from lightning_dar.model.layer import Context, Sublayer, norm_of
from lightning_dar.named import not_found
from lightning_dar.named import register as register_class

Class = TypeVar("Class", bound=type[Sublayer])

WHAT = "MLP kind"
_KINDS: dict[str, type[Sublayer]] = {}


def register_mlp(kind: str) -> Callable[[Class], Class]:
    """Class decorator: makes a `Sublayer` available as `--model.mlp.kind KIND`. Its `__init__` takes the sizes, then
    keyword-only `pre_norm` and its own options.

    Raises:
        UsageError: the name is taken by another class, or the class is not a `Sublayer`.
    """

    def register(cls: Class) -> Class:
        register_class(_KINDS, kind, cls, Sublayer, WHAT)
        return cls

    return register


def available_mlps() -> list[str]:
    return list(_KINDS)


def mlp_class(kind: str, plugin: str | None = None) -> type[Sublayer]:
    """The class registered as `kind`. Raises UsageError where there is none, with the known ones, or with the module
    that a checkpoint says registered it."""
    if kind in _KINDS:
        return _KINDS[kind]
    raise not_found(_KINDS, kind, WHAT, "model.mlp.kind", plugin, " A plugin's kind needs --plugins MODULE.")


@register_mlp("swiglu")
class MLP(Sublayer):
    """down(silu(gate(x)) * up(x)) of the normed input."""

    outputs = ("down_proj",)

    def __init__(self, sizes: TransformerConfig, *, pre_norm: bool = True):
        super().__init__(sizes)
        hidden, inner = sizes.hidden_size, sizes.intermediate_size
        self.norm = norm_of(hidden, sizes.norm_eps, pre_norm)
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def compute(self, x: Tensor, context: Context) -> Tensor:
        x = self.norm(x)
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    @classmethod
    def product_weights(cls, sizes: TransformerConfig) -> int:
        return 3 * sizes.hidden_size * sizes.intermediate_size

    @classmethod
    def saved_bytes(cls, sizes: TransformerConfig, inputs: tuple[torch.dtype, ...], saving: Saving) -> int:
        """Bytes of its input, and of gate, silu(gate), up and their product."""
        total = saving.norm(sizes.hidden_size, 1, inputs[0]) + saving.product_inputs(sizes.hidden_size, 2)
        return total + 4 * sizes.intermediate_size * saving.compute.itemsize

    @classmethod
    def gradient_bytes(cls, sizes: TransformerConfig, saving: Saving) -> int:
        """Bytes of the gradients of gate, up and their product."""
        return 3 * sizes.intermediate_size * saving.compute.itemsize
