"""A kind of MLP outside of the package: experts by a soft router, with a bare parameter and an auxiliary loss."""

import torch
from torch import nn

from lightning_dar import Sublayer, register_mlp


@register_mlp("experts")
class Experts(Sublayer):
    """sum_e p_e down_e(relu(up_e(x))), p = softmax(router(x)); the auxiliary loss is weight * E * sum_e mean(p_e)^2."""

    def __init__(self, sizes, *, pre_norm: bool = True, num_experts: int = 3, weight: float = 0.1):
        super().__init__(sizes)
        hidden, inner = sizes.hidden_size, sizes.intermediate_size
        self.num_experts, self.weight = num_experts, weight
        self.norm = nn.RMSNorm(hidden, sizes.norm_eps) if pre_norm else nn.Identity()
        self.router = nn.Linear(hidden, num_experts, bias=False)
        self.up = nn.Parameter(torch.empty(hidden, num_experts * inner))
        self.down_proj = nn.Linear(num_experts * inner, hidden, bias=False)

    outputs = ("down_proj",)

    def compute(self, x, context):
        x = self.norm(x)
        share = self.router(x).softmax(-1)
        inner = torch.relu(x @ self.up).unflatten(-1, (self.num_experts, -1)) * share[..., None]
        balance = self.num_experts * share.mean((0, 1)).square().sum()
        return self.down_proj(inner.flatten(-2)), self.weight * balance

    def reset_module(self, name, module):
        super().reset_module(name, module)
        if module is self:
            nn.init.normal_(self.up, std=self.sizes.init_std)

    def decays(self, name):
        return name == "up" or super().decays(name)

    @classmethod
    def product_weights(cls, sizes):
        experts = sizes.mlp.options.get("num_experts", 3)
        return sizes.hidden_size * experts * (1 + 2 * sizes.intermediate_size)

    @classmethod
    def saved_bytes(cls, sizes, inputs, saving):
        experts, size = sizes.mlp.options.get("num_experts", 3), saving.compute.itemsize
        total = saving.norm(sizes.hidden_size, 1, inputs[0]) + saving.product_inputs(sizes.hidden_size, 2)
        return total + (experts + 2 * experts * sizes.intermediate_size) * size

    @classmethod
    def gradient_bytes(cls, sizes, saving):
        return 2 * sizes.mlp.options.get("num_experts", 3) * sizes.intermediate_size * saving.compute.itemsize
