"""Bytes a number takes, by the trainer's precision."""

from dataclasses import dataclass

import torch

from lightning_dar.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Dtypes of one training step."""

    weights: torch.dtype
    """Of parameters, their gradients and both of AdamW's averages."""

    compute: torch.dtype
    """Of what enters the matrix products, and of a sublayer's output."""

    stream: torch.dtype
    """Of the embedding, so of the residual stream."""

    autocast: bool
    """Whether PyTorch casts at each operation. Norms then run in fp32, and every product keeps a copy of its own, in
    half precision, of what enters it: of fp32 weights too, from the forward to the backward."""


def precision_of(name: str) -> Precision:
    """Of the trainer's `precision`, such as bf16-mixed. Raises UsageError for one that is not planned for."""
    name = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}.get(name, name)
    half, full = (torch.float16 if name.startswith("16") else torch.bfloat16), torch.float32
    if name == "32-true":
        return Precision(weights=full, compute=full, stream=full, autocast=False)
    if name in ("bf16-true", "16-true"):
        return Precision(weights=half, compute=half, stream=half, autocast=False)
    if name in ("bf16-mixed", "16-mixed"):
        return Precision(weights=full, compute=half, stream=full, autocast=True)
    raise UsageError(f"trainer.precision={name}: plan knows 32-true, bf16-mixed, bf16-true, 16-mixed and 16-true")
