"""Rotary position embeddings, in the half-split layout of Llama and Qwen."""

import math

import torch
from torch import Tensor

from lightning_dar.model.config import RopeScaling


def rope_angles(
    positions: Tensor, head_dim: int, theta: float, *, scaling: RopeScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines (the left half negative), each fp32 [..., T, 1, head_dim], of positions [..., T].

    Computed anew each forward (a few kilobytes), so that the model has no buffer to lose on the meta device.
    """
    frequency = rope_frequencies(head_dim, theta, positions.device, scaling)
    angle = positions[..., None].float() * frequency
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], dim=-1)[..., None, :], torch.cat([-sin, sin], dim=-1)[..., None, :]


def rope_frequencies(head_dim: int, theta: float, device: torch.device, scaling: RopeScaling | None = None) -> Tensor:
    """Radians per token, fp32 [head_dim / 2]."""
    exponent = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    frequency = theta**-exponent
    return frequency if scaling is None else _scaled(frequency, scaling)


def _scaled(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """Low frequencies divided by `factor`, high ones kept, a linear blend between (Llama 3.1)."""
    turns = scaling.original_max_positions * frequency / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return kept * frequency + (1 - kept) * frequency / scaling.factor


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates heads [B, T, H, head_dim] by their positions' angles; keeps the dtype."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin).to(x.dtype)
