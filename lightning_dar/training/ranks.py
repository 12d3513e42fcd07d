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


def fail_together(speaks: bool, message: str) -> NoReturn:
    """Ends a run for a reason that every rank has seen: one says it, by TrainingError, the others only end."""
    if speaks:
        raise TrainingError(message)
    raise SystemExit(1)
