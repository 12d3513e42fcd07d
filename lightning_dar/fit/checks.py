"""What is refused before a run begins: settings that contradict the checkpoint, or ask for what this machine lacks."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CUDAAccelerator, MPSAccelerator, XLAAccelerator
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import ModelParallelStrategy

from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.errors import UsageError
from lightning_dar.fit.terminal import notice
from lightning_dar.model import MLPConfig
from lightning_dar.model.build import checked_mlp
from lightning_dar.residual import ResidualConfig
from lightning_dar.residual.build import checked_options
from lightning_dar.residual.registry import residual_class
from lightning_dar.run.config import MODEL_KEY
from lightning_dar.training.optimizer import OptimizerConfig

OFF_THE_CPU = (CUDAAccelerator, MPSAccelerator, XLAAccelerator)  # what Lightning's `auto` prefers to it
HALF = ("16", "16-mixed", "bf16", "bf16-mixed")
IN_THE_OPTIMIZER = ("name", "lr", "routing_lr", "weight_decay", "decay", "betas", "eps", "momentum")
"""Restored with its state."""


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
    """Makes a mixed precision meant for GPUs 32-true where `accelerator: auto` comes down to the CPU: there it only
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


def refuse_contradictions(checkpoint: Checkpoint, model: Namespace) -> None:
    """Raises UsageError where an option asks for another network than the checkpoint's."""
    description = checkpoint.description
    saved = description["residual"]
    cls = residual_class(saved["name"], description["plugin"])
    mlp = checked_mlp(checkpoint.config.mlp, description.get("mlp_plugin"))
    has = description["architecture"] | {"mlp": asdict(mlp), "residual.name": saved["name"]}
    asked = {key: model[key] for key in (*description["architecture"], "mlp")}
    if asked["mlp"] is not None:
        asked["mlp"] = asdict(checked_mlp(MLPConfig(**vars(model.mlp))))
    if model.init_from is None or not _is_unset(model.residual):
        asked["residual.name"] = model.residual.name
    if model.residual.name == saved["name"]:
        for values, options in ((asked, model.residual.options), (has, saved["options"])):
            checked = checked_options(ResidualConfig(name=saved["name"], options=options), cls)
            values |= {f"residual.options.{key}": value for key, value in checked.items()}
    for key, value in asked.items():
        value = value.as_dict() if isinstance(value, Namespace) else value
        if value is not None and value != has.get(key):
            raise UsageError(f"model.{key}={value}: the checkpoint has {has.get(key)}; leave it unset")


def _is_unset(residual: Namespace) -> bool:
    """Whether nothing but the default is asked for: a run that starts from other weights has their strategy then."""
    return residual.name == ResidualConfig().name and not residual.options


def refuse_another_optimizer(checkpoint: Checkpoint, asked: Namespace) -> None:
    """Raises UsageError for what a resumed optimizer would take from the checkpoint without a word."""
    saved = {"name": OptimizerConfig.name, **checkpoint.content[MODEL_KEY].get("optimizer", {})}
    for key in (key for key in IN_THE_OPTIMIZER if key in saved):
        value, has = (list(each) if isinstance(each, tuple) else each for each in (asked[key], saved[key]))
        if value != has:
            raise UsageError(
                f"model.optimizer.{key}={value}: the optimizer in the checkpoint has {has} and goes on with it; "
                f"leave it so, or start anew from the weights by --model.init_from {checkpoint.path}"
            )


def refuse_intervals_of_zero(trainer: Namespace) -> None:
    """Raises UsageError where Lightning would divide by zero."""
    for key in ("accumulate_grad_batches", "val_check_interval", "check_val_every_n_epoch"):
        value = trainer[key]
        if isinstance(value, int | float) and value <= 0:
            raise UsageError(f"trainer.{key}={value}: must be above 0")


def check_reads(trainer: Trainer, checkpoint: Path) -> None:
    """Raises UsageError for a sharded folder where the strategy reads files only, or folders of another kind."""
    if checkpoint.is_dir() and not isinstance(trainer.strategy, ModelParallelStrategy):
        raise UsageError(
            f"--ckpt_path {checkpoint}: a sharded folder, which {type(trainer.strategy).__name__} cannot go on from; "
            "add --config configs/strategy/fsdp2.yaml, on any number of devices"
        )
