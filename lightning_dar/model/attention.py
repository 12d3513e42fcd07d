"""The grouped-query attention sublayer."""

import torch
from torch import Tensor, nn

from lightning_dar.model.attention_backends import attend
from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.costs import FP32, Saving
from lightning_dar.model.rope import apply_rope
from lightning_dar.model.sublayer import Context, Inputs, Sublayer, norm_of


class Attention(Sublayer):
    """Causal attention of the normed input; `num_inputs` 3 takes query, key and value inputs apart. `layer` is the
    place of its keys and values in a cache."""

    outputs = ("o_proj",)

    def __init__(self, config: TransformerConfig, *, layer: int = 0, pre_norm: bool = True, num_inputs: int = 1):
        super().__init__(config)
        self.backend, self.head_dim, self.layer = config.attention_backend, config.head_dim, layer
        hidden, bias, eps = config.hidden_size, config.qkv_bias, config.norm_eps
        self.norm = norm_of(hidden, eps, pre_norm)
        if num_inputs == 3:
            self.key_norm, self.value_norm = norm_of(hidden, eps, pre_norm), norm_of(hidden, eps, pre_norm)
        self.q_proj = nn.Linear(hidden, config.num_heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, config.num_kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, config.num_kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, hidden, bias=False)
        self.q_norm = norm_of(config.head_dim, eps, config.qk_norm)
        self.k_norm = norm_of(config.head_dim, eps, config.qk_norm)

    def compute(self, x: Inputs, context: Context) -> Tensor:
        query_in, key_in, value_in = self._normed(x)
        heads = (-1, self.head_dim)
        q = self.q_norm(self.q_proj(query_in).unflatten(-1, heads))
        k = self.k_norm(self.k_proj(key_in).unflatten(-1, heads))
        v = self.v_proj(value_in).unflatten(-1, heads)
        # Back to one dtype: under autocast norms and rotations come out in fp32, which xformers refuses.
        q = apply_rope(q, context.cos, context.sin).to(v.dtype)
        k = apply_rope(k, context.cos, context.sin).to(v.dtype)
        return self.o_proj(self.attend(q, k, v, context).flatten(-2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Rotated heads [B, T, H, head_dim], keys and values [B, T, K, head_dim] -> [B, T, H, head_dim]."""
        if context.cache is not None:
            k, v = context.cache.append(self.layer, k, v)
        return attend(q, k, v, context.mask, self.backend)

    def _normed(self, x: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(x, Tensor):
            x = self.norm(x)
            return x, x, x
        query_in, key_in, value_in = x
        return self.norm(query_in), self.key_norm(key_in), self.value_norm(value_in)

    @classmethod
    def product_weights(cls, sizes: TransformerConfig) -> int:
        return 2 * sizes.hidden_size * sizes.head_dim * (sizes.num_heads + sizes.num_kv_heads)

    @classmethod
    def saved_bytes(cls, sizes: TransformerConfig, inputs: tuple[torch.dtype, ...], saving: Saving) -> int:
        """Its inputs (one, or query, key and value), what the norms of the heads save, rotated queries and keys,
        values, the result and the log-sum-exp."""
        compute = saving.compute.itemsize
        queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        total = sum(saving.norm(sizes.hidden_size, 1, dtype) for dtype in inputs)
        total += saving.product_inputs(sizes.hidden_size, 3, len(inputs))
        if sizes.qk_norm:
            for width, heads in ((queries, sizes.num_heads), (keys, sizes.num_kv_heads)):
                total += saving.norm(width, heads, saving.compute)
        return total + 2 * (queries + keys) * compute + sizes.num_heads * FP32

    @classmethod
    def gradient_bytes(cls, sizes: TransformerConfig, saving: Saving) -> int:
        """Those of queries, keys and values."""
        return (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_dim * saving.compute.itemsize
