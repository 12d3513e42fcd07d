"""Pieces that the hand-written backends share."""

import torch
from torch import Tensor


def inverse_rms(source: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """rsqrt(mean(v^2) + eps) over the last dimension, in one pass."""
    norm = torch.linalg.vector_norm(source, dim=-1, dtype=dtype)
    return norm.square_().div_(source.shape[-1]).add_(eps).rsqrt_()


def refuse_double_backward(backend: str) -> None:
    """Called first in a backward: autograd records there only if a second derivative is wanted."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"the depth read's backend '{backend}' has no second derivative (create_graph=True): "
            "set model.residual.depth_read to naive"
        )
