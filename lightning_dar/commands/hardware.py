"""What a run asks of the hardware, against what this machine has."""

import sys
from collections.abc import Sequence

import torch
from jsonargparse import Namespace
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator, XLAAccelerator
from lightning.pytorch.utilities import rank_zero_only

from lightning_dar.errors import UsageError

OFF_THE_CPU = (CUDAAccelerator, MPSAccelerator, XLAAccelerator)  # what Lightning's `auto` prefers to it
HALF = ("16", "16-mixed", "bf16", "bf16-mixed")


def check_gpu(accelerator: str) -> None:
    """Raises UsageError where the trainer asks for a GPU and there is none."""
    has_gpu = torch.cuda.is_available() or (accelerator == "gpu" and torch.backends.mps.is_available())
    if accelerator in ("gpu", "cuda") and not has_gpu:
        raise UsageError(
            f"trainer.accelerator={accelerator}: this config needs a CUDA GPU and none was found; "
            "configs/quickstart.yaml runs on this machine"
        )


def settle_precision(trainer: Namespace, args: Sequence[str]) -> None:
    """Where `accelerator: auto` comes down to the CPU, a mixed precision meant for GPUs becomes 32-true: there it only
    costs time and digits. One that `args`, the command line, names itself stays, as do those of explicit devices.

    Args:
        trainer: the trainer's settings; changed in place.
        args: the command line.
    """
    named = any(arg.partition("=")[0] == "--trainer.precision" for arg in args)
    if named or trainer.accelerator != "auto" or str(trainer.precision) not in HALF:
        return
    if not any(accelerator.is_available() for accelerator in OFF_THE_CPU):
        _notice(
            f"trainer.precision={trainer.precision}: no GPU was found, so 32-true is used, on the CPU "
            "(--trainer.accelerator cpu keeps the precision)"
        )
        trainer.precision = "32-true"


@rank_zero_only
def _notice(line: str) -> None:
    print(line, file=sys.stderr)
