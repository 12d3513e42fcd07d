"""What a run asks of the hardware, against what this machine has."""

import os
from collections.abc import Sequence

import torch
from jsonargparse import Namespace
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator, XLAAccelerator
from lightning.pytorch.plugins.environments import TorchElasticEnvironment

from lightning_dar.errors import UsageError
from lightning_dar.run.notice import notice

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


def check_launch(trainer: Namespace) -> None:
    """Raises UsageError where torchrun has started another number of processes than the trainer asks for: each of them
    would else train a model of its own, into the same folder."""
    if not TorchElasticEnvironment.detect():
        return
    asked, started = _processes_per_node(trainer) * trainer.num_nodes, int(os.environ["WORLD_SIZE"])
    if asked != started:
        raise UsageError(
            f"trainer.devices={trainer.devices}, trainer.num_nodes={trainer.num_nodes}: {asked} process(es) asked for, "
            f"torchrun has started {started}; they are its --nproc-per-node and --nnodes"
        )


def _processes_per_node(trainer: Namespace) -> int:
    devices = trainer.devices
    if devices in ("auto", "-1", -1):
        on_gpu = trainer.accelerator != "cpu" and CUDAAccelerator.is_available()
        return CUDAAccelerator.auto_device_count() if on_gpu else 1
    if isinstance(devices, str):
        devices = int(devices) if devices.isdigit() else devices.strip(",").split(",")
    return devices if isinstance(devices, int) else len(devices)


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
        notice(
            f"trainer.precision={trainer.precision}: no GPU was found, so 32-true is used, on the CPU "
            "(--trainer.accelerator cpu keeps the precision)"
        )
        trainer.precision = "32-true"
