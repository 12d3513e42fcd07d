"""The SwiGLU sublayer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.costs import Saving
from lightning_dar.model.mlp_kinds import register_mlp
from lightning_dar.model.sublayer import Context, Sublayer, norm_of


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
        """Its input, and gate, silu(gate), up and their product."""
        total = saving.norm(sizes.hidden_size, 1, inputs[0]) + saving.product_inputs(sizes.hidden_size, 2)
        return total + 4 * sizes.intermediate_size * saving.compute.itemsize

    @classmethod
    def gradient_bytes(cls, sizes: TransformerConfig, saving: Saving) -> int:
        """Those of gate, up and their product."""
        return 3 * sizes.intermediate_size * saving.compute.itemsize
