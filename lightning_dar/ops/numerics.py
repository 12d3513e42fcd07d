"""Pieces that the hand-written backends share."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any

import torch
from torch import Tensor

SHORT = 400
"""A product of one vector with a shorter one than this takes a slow path in PyTorch's bmm."""


def inverse_rms(source: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """rsqrt(mean(v^2) + eps) over the last dimension, in one pass."""
    norm = torch.linalg.vector_norm(source, dim=-1, dtype=dtype)
    return norm.mul_(norm).div_(source.shape[-1]).add_(eps).rsqrt_()


def softmax_and_log_sum(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over dimension 1 of [M, n, C], and its log-sum-exp [M, C]: both in one go, since PyTorch's own are slow
    over a short dimension that is not the last."""
    largest = logits.amax(1, keepdim=True)
    weights = (logits - largest).exp_()
    total = weights.sum(1, keepdim=True)
    return weights.div_(total), total.log_().add_(largest)[:, 0]


def add_weighted(total: Tensor | None, weights: Tensor, values: Tensor) -> Tensor:
    """total [M, D] + sum_k weights [M, k] values [M, k, D], as a new tensor."""
    if values.shape[1] == 1:  # PyTorch's bmm takes a slow path for one small vector
        weight, value = weights[:, :1], values[:, 0]
        return value * weight if total is None else torch.addcmul(total, value, weight)
    if total is None:
        return torch.bmm(weights[:, None], values)[:, 0]
    return torch.baddbmm(total[:, None], weights[:, None], values)[:, 0]


def dots(vector: Tensor, values: Tensor) -> Tensor:
    """vector [M, D] . values [M, k, D] -> [M, k]."""
    if values.shape[1] == 1 and values.shape[2] < SHORT:
        return torch.linalg.vecdot(vector, values[:, 0])[:, None]
    return torch.bmm(vector[:, None], values.transpose(1, 2))[:, 0]


def full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps autocast, which would round every product, out of an autograd function's forward or backward."""

    @wraps(function)
    def wrapped(*args: Any) -> Any:
        enabled = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
        if not enabled:
            return function(*args)
        with ExitStack() as stack:
            for device in enabled:
                stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args)

    return wrapped


def refuse_double_backward(backend: str) -> None:
    """Called first in a backward: autograd records there only if a second derivative is wanted."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"the depth read's backend '{backend}' has no second derivative (create_graph=True): "
            "set model.residual.depth_read to naive"
        )
