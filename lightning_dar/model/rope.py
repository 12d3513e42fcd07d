"""Rotary position embeddings, in the half-split layout of Llama and Qwen."""

import torch
from torch import Tensor


def rope_angles(seq_len: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines (the left half negative), each fp32 [T, 1, head_dim], of positions 0 .. T-1.

    Computed anew each forward (a few kilobytes), so that the model has no buffer to lose on the meta device.
    """
    exponent = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    position = torch.arange(seq_len, device=device, dtype=torch.float32)
    angle = torch.outer(position, theta**-exponent)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], dim=-1)[:, None, :], torch.cat([-sin, sin], dim=-1)[:, None, :]


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates heads [B, T, H, head_dim] by their positions' angles; keeps the dtype."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)
