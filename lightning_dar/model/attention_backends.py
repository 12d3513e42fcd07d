"""Causal attention by backend: PyTorch's own (`sdpa`, everywhere) and xformers (CUDA).

Both keep documents packed in one window apart when told where they lie.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_dar.errors import UsageError


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
