"""What all ranks do together."""

from typing import Any, NoReturn

import lightning as L
import torch

from lightning_dar.errors import TrainingError


def from_all_ranks(trainer: L.Trainer, value: Any) -> list[Any]:
    """`value` of every rank, in their order; all ranks must call it."""
    if trainer.world_size == 1:
        return [value]
    values = [None] * trainer.world_size
    torch.distributed.all_gather_object(values, value)
    return values


def fail_together(is_global_zero: bool, message: str) -> NoReturn:
    """Ends a run for a reason that every rank has seen: the first says it, by TrainingError, the others only end."""
    if is_global_zero:
        raise TrainingError(message)
    raise SystemExit(1)
