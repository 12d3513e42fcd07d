"""Grouped-query attention, and what computes it.

Both keep documents packed in one window apart when told where they lie.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_dar.errors import UsageError
from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.costs import FP32, Saving
from lightning_dar.model.layer import Context, Inputs, Sublayer, norm_of
from lightning_dar.model.rope import apply_rope


def require_backend(backend: str) -> None:
    """Raises UsageError where the backend cannot run, with the reason."""
    if backend != "xformers":
        return
    if not torch.cuda.is_available():
        raise UsageError("model.attention_backend: xformers needs a CUDA GPU and none was found; use sdpa")
    _xformers()


def document_mask(document_ids: Tensor | None, backend: str) -> Any:
    """What `attend` needs to keep documents apart; None means plain causal attention.

    Args:
        document_ids: int [B, T], equal within a document, non-decreasing along T.
        backend: `sdpa` (a boolean mask [B, 1, T, T]) or `xformers` (a block-diagonal causal bias over B*T).
    """
    if document_ids is None:
        return None
    if backend == "xformers":
        return _xformers_bias(document_ids)
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return same.tril()


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any, backend: str) -> Tensor:
    """Causal attention with grouped heads.

    Args:
        q: [B, T, H, head_dim], the newest T of S tokens (S = T without a cache).
        k: [B, S, K, head_dim], H a multiple of K.
        v: [B, S, K, head_dim].
        mask: from `document_mask`, its last T rows.
        backend: `sdpa`, or `xformers` where S = T.

    Returns:
        [B, T, H, head_dim].
    """
    queries, keys = q.shape[1], k.shape[1]
    if backend == "xformers" and queries == keys:
        return _attend_xformers(q, k, v, mask)
    if mask is None and 1 < queries < keys:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None and queries == keys,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)


def _xformers() -> Any:
    try:
        import xformers.ops
    except ImportError as error:
        raise UsageError(
            f"model.attention_backend: xformers cannot be imported ({error}); install it, or use sdpa"
        ) from error
    return xformers.ops


def _xformers_bias(document_ids: Tensor) -> Any:
    starts = torch.ones_like(document_ids, dtype=torch.bool)
    starts[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    first = starts.flatten().nonzero().flatten()
    lengths = torch.diff(first, append=first.new_tensor([document_ids.numel()])).tolist()
    return _xformers().fmha.attn_bias.BlockDiagonalCausalMask.from_seqlens(lengths, device=document_ids.device)


def _attend_xformers(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    ops = _xformers()
    batch, seq_len, heads, head_dim = q.shape
    groups = k.shape[2]
    shape = (batch, seq_len, groups, heads // groups, head_dim)
    q = q.reshape(shape)
    k, v = k[:, :, :, None].expand(shape), v[:, :, :, None].expand(shape)
    if mask is not None:  # xformers keeps documents apart along one long sequence
        q, k, v = (x.reshape(1, batch * seq_len, *shape[2:]) for x in (q, k, v))
    bias = ops.fmha.attn_bias.LowerTriangularMask() if mask is None else mask
    return ops.memory_efficient_attention(q, k, v, attn_bias=bias).reshape(batch, seq_len, heads, head_dim)


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
        """Bytes of its inputs (one, or query, key and value), what the norms of the heads save, rotated queries and
        keys, values, the result and the log-sum-exp."""
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
        """Bytes of the gradients of queries, keys and values."""
        return (sizes.num_heads + 2 * sizes.num_kv_heads) * sizes.head_dim * saving.compute.itemsize
