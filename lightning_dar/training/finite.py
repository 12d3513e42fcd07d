"""Losses and gradients that are not finite, found before the optimizer step that they would spoil."""

import hashlib
from pathlib import Path
from typing import Literal

import lightning as L
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from lightning_dar.errors import DataError
from lightning_dar.run.last import newest_in
from lightning_dar.run.saving import checkpoint_folder, fail_together
from lightning_dar.run.state import from_all_ranks

OnFault = Literal["stop", "skip"]
_LOSS = "the loss"


class FiniteSteps:
    """Looks at every optimizer step; ends the run, or leaves the step out, where one is at fault on some rank.

    Attributes:
        skipped: steps left out so far.
    """

    def __init__(self, on_fault: OnFault, max_skipped: int) -> None:
        self._on_fault, self._max_skipped = on_fault, max_skipped
        self._batches: list[tuple[Tensor, Tensor]] = []  # of this step, on this rank
        self.skipped = 0

    def add(self, loss: Tensor, input_ids: Tensor) -> None:
        """A batch of the step: its loss, a scalar, and ids [B, T]."""
        self._batches.append((loss.detach(), input_ids))

    def are_to_skip(self, trainer: L.Trainer, optimizer: Optimizer) -> bool:
        """Whether the step whose gradients are there is to be left out: the same on every rank.

        Raises:
            TrainingError: it is at fault, and none may be left out, or no more.
        """
        batches, self._batches = self._batches, []
        scales = getattr(trainer.precision_plugin, "scaler", None) is not None  # 16-mixed looks after its gradients
        fault = _fault(batches, [] if scales else _gradients(optimizer))
        if not trainer.strategy.reduce_boolean_decision(fault is not None, all=False):
            return False
        said = f"step {trainer.global_step + 1}: {_first(from_all_ranks(trainer, fault))}"
        self.skipped += 1
        if self._on_fault == "stop" or self.skipped > self._max_skipped:
            ending = f"; {_last_good(trainer)}; {self._advice()}" if trainer.is_global_zero else ""
            trainer.strategy.barrier()  # where the others end at once, Lightning ends the one that launched them
            fail_together(trainer.is_global_zero, said + ending)
        rank_zero_warn(f"{said}; left out, {self.skipped} of at most {self._max_skipped}")
        for logger in trainer.loggers:
            logger.log_metrics({"train/skipped_steps": self.skipped}, step=trainer.global_step)
        return True

    def _advice(self) -> str:
        if self._on_fault == "stop":
            return "--model.non_finite skip leaves such steps out"
        return f"{self._max_skipped} steps were left out before it (model.max_skipped_steps)"


def _fault(batches: list[tuple[Tensor, Tensor]], gradients: list[Tensor]) -> str | None:
    norms = [get_total_norm(gradients)] if gradients else []
    numbers = [number.float() for number in (*(loss for loss, _ in batches), *norms)]
    if torch.stack(numbers).isfinite().all():  # waits for the device once
        return None
    for number, (loss, input_ids) in enumerate(batches, 1):
        if not loss.isfinite():
            return f"{_LOSS} is {loss.item()}, in batch {fingerprint(input_ids)} ({number} of {len(batches)})"
    names = ", ".join(fingerprint(input_ids) for _, input_ids in batches)
    return f"the norm of the gradient is {norms[0].item()}, of batch {names}"


def _first(faults: list[str | None]) -> str:
    """The cause among what the ranks say: a loss on one spoils the gradient on all."""
    rank = min(range(len(faults)), key=lambda rank: (faults[rank] is None, not str(faults[rank]).startswith(_LOSS)))
    return faults[rank] if len(faults) == 1 else f"rank {rank}: {faults[rank]}"


def fingerprint(input_ids: Tensor) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of the ids as int64, in order."""
    return hashlib.sha256(input_ids.long().cpu().contiguous().numpy().tobytes()).hexdigest()[:12]


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    """The gradients of the optimizer's parameters; of sharded ones, this rank's part."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    gradients = (parameter.grad for parameter in parameters if parameter.grad is not None)
    return [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]


def _last_good(trainer: L.Trainer) -> str:
    folder = checkpoint_folder(trainer)
    if folder and "://" in folder:
        return f"checkpoints are in {folder}"
    try:
        newest = newest_in(Path(folder)) if folder else None
    except DataError as error:
        return f"the last checkpoint cannot be read: {error}"
    return f"the last good checkpoint is {newest.path} ({newest.steps} steps)" if newest else "nothing is saved"
