"""The grouped-query attention sublayer."""

from typing import Any, NamedTuple

from torch import Tensor, nn

from lightning_dar.model.attention_backends import attend
from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.kv_cache import KVCache
from lightning_dar.model.rope import apply_rope


class Context(NamedTuple):
    """What every sublayer of one forward shares: rotary angles, the attention mask, and what came before."""

    cos: Tensor
    sin: Tensor
    mask: Any
    cache: KVCache | None = None


class Attention(nn.Module):
    """Causal attention of the normed input; `num_inputs` 3 takes query, key and value inputs apart. `layer` is the
    place of its keys and values in a cache."""

    def __init__(self, config: TransformerConfig, *, layer: int = 0, pre_norm: bool = True, num_inputs: int = 1):
        super().__init__()
        self.backend, self.head_dim, self.layer = config.attention_backend, config.head_dim, layer
        hidden, bias = config.hidden_size, config.qkv_bias

        def norm(size: int, wanted: bool) -> nn.Module:
            return nn.RMSNorm(size, config.norm_eps) if wanted else nn.Identity()

        self.norm = norm(hidden, pre_norm)
        if num_inputs == 3:
            self.key_norm, self.value_norm = norm(hidden, pre_norm), norm(hidden, pre_norm)
        self.q_proj = nn.Linear(hidden, config.num_heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden, config.num_kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, config.num_kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, hidden, bias=False)
        self.q_norm = norm(config.head_dim, config.qk_norm)
        self.k_norm = norm(config.head_dim, config.qk_norm)

    def forward(self, x: Tensor | tuple[Tensor, Tensor, Tensor], context: Context) -> Tensor:
        """[B, T, D] (or three of them) -> [B, T, D]."""
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

    def _normed(self, x: Tensor | tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(x, Tensor):
            x = self.norm(x)
            return x, x, x
        query_in, key_in, value_in = x
        return self.norm(query_in), self.key_norm(key_in), self.value_norm(value_in)
