"""Lightning's sharding strategies, set up for this model."""

import os
from collections.abc import Mapping
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.strategies.fsdp import _get_full_state_dict_context
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.optim import Optimizer

from lightning_dar.checkpoint.load import trained_weights
from lightning_dar.errors import DataError
from lightning_dar.files import remove
from lightning_dar.model import Transformer
from lightning_dar.model.attention import Attention
from lightning_dar.model.mlp import available_mlps, mlp_class
from lightning_dar.run.saving import name_whole, writing

FSDP_PREFIX = "_fsdp_wrapped_module."  # in names of parameters, before what `FSDP` wraps; never in a checkpoint


class FSDP2(ModelParallelStrategy):
    """Lightning's `ModelParallelStrategy` with every device a data-parallel one and checkpoints of one file.

    Lightning's own default is tensor parallelism over the devices of a node.
    """

    def __init__(self, save_distributed_checkpoint: bool = False, timeout_seconds: float = 1800.0):
        """
        Args:
            save_distributed_checkpoint: write a folder with a part from each process instead of one file.
            timeout_seconds: how long a process waits for the others.
        """
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            timeout=timedelta(seconds=timeout_seconds),
        )

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike, storage_options: Any | None = None
    ) -> None:
        """A folder gets its name when all its parts are on disk. Raises TrainingError as `WholeFiles` does."""
        if not self._save_distributed_checkpoint:
            # Past Lightning's own, which removes a sharded folder of that name before the file is written.
            super(ModelParallelStrategy, self).save_checkpoint(checkpoint, filepath, storage_options)
            return
        path = Path(self.broadcast(filepath))
        with writing(path, self.is_global_zero) as partial:
            if self.is_global_zero:
                remove(partial)
            self.barrier()
            super().save_checkpoint(checkpoint, partial, storage_options)
            if self.is_global_zero:
                name_whole(path)

    def load_checkpoint(self, checkpoint_path: str | os.PathLike, weights_only: bool | None = None) -> dict[str, Any]:
        """Raises DataError as `load_single_file` does."""
        path = Path(self.broadcast(checkpoint_path))
        if path.is_dir():
            return super().load_checkpoint(path, weights_only)
        return load_single_file(path, self.model, self.optimizers)


class FSDP(FSDPStrategy):
    """Lightning's `FSDPStrategy` with the units of `shard`, around the transformer alone, and checkpoints of one file.

    Weights are gathered in the dtype they have and autocast converts what it multiplies: Lightning's own mixed
    precision would round queries and gains of the depth read to bf16. Unlike under `FSDP2` every process builds the
    whole model before its part of it is kept.
    """

    def __init__(self, timeout_seconds: float = 1800.0):
        """
        Args:
            timeout_seconds: how long a process waits for the others.
        """
        from torch.distributed.fsdp import MixedPrecision

        super().__init__(
            auto_wrap_policy={Attention, *map(mlp_class, available_mlps())},
            mixed_precision=MixedPrecision(),
            timeout=timedelta(seconds=timeout_seconds),
        )

    def _setup_model(self, model: LightningModule) -> LightningModule:
        """The root is the transformer: callbacks run it outside of a training step too."""
        for name, child in model.named_children():
            if name != "model":
                child.to(self.root_device)
        model.model = self.wrap(model.model, self.root_device)
        return model

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike, storage_options: Any | None = None
    ) -> None:
        """Raises TrainingError as `WholeFiles` does."""
        super(FSDPStrategy, self).save_checkpoint(checkpoint, filepath, storage_options)  # as in `FSDP2`

    def load_checkpoint(self, checkpoint_path: str | os.PathLike, weights_only: bool | None = None) -> dict[str, Any]:
        """Raises DataError as `load_single_file` does."""
        return load_single_file(Path(self.broadcast(checkpoint_path)), self.model, self.optimizers)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Whole, in the first process. On CPUs torch must be asked for one kind of state after the other: it gathers
        them all in one buffer and returns, there, views of it, so that every kind would be the last one."""
        from torch.distributed.fsdp import FullyShardedDataParallel as Sharded
        from torch.distributed.fsdp import OptimStateKeyType

        if self.root_device.type != "cpu" or self.world_size == 1:
            return super().optimizer_state(optimizer)
        optimizer = getattr(optimizer, "_optimizer", optimizer)
        own, kinds = optimizer.state_dict(), [None] * self.world_size
        # Where nothing of a parameter lies here, it has no state here.
        torch.distributed.all_gather_object(kinds, sorted({kind for state in own["state"].values() for kind in state}))
        whole, found = {}, {}
        with _get_full_state_dict_context(self.model, world_size=self.world_size):
            for kind in sorted(set(chain(*kinds))):
                part = {number: {kind: state[kind]} for number, state in own["state"].items()}
                found = Sharded.optim_state_dict(self.model, optimizer, {**own, "state": part})
                whole = whole or {**found, "state": {}}
                for name, state in found.get("state", {}).items():
                    whole["state"].setdefault(name, {}).update(state)
        return Sharded.rekey_optim_state_dict(whole, OptimStateKeyType.PARAM_ID, self.model) if found else {}

    def wrap(self, model: Transformer, device: torch.device) -> nn.Module:
        """The model with every sublayer and the rest as units, sharded over all processes."""
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(
            model,
            device_id=device,
            mixed_precision=self.mixed_precision_config,
            sharding_strategy=self.sharding_strategy,
            **self.kwargs,
        )


def load_single_file(path: Path, model: nn.Module, optimizers: list[Optimizer]) -> dict[str, Any]:
    """Gives a sharded model and its optimizers what any strategy has saved of them; returns the rest.

    Lightning's own takes the numbers in an optimizer's state for places in the model, which they are only where all
    parameters are in one group: moments would land on other parameters.

    Raises:
        DataError: an optimizer that has trained other parameters.
    """
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, trained_weights(content), options=options)
    del content["state_dict"]
    for optimizer, saved in zip(optimizers, content["optimizer_states"] if optimizers else (), strict=True):
        set_optimizer_state_dict(model, optimizer, by_name(saved, optimizer, model, path), options=options)
    return content


def by_name(saved: Mapping[str, Any], optimizer: Optimizer, model: nn.Module, path: Path) -> dict[str, Any]:
    """An optimizer's state under its parameters' names instead of numbers. As for torch itself, a parameter is told by
    its place in the optimizer's groups, and its number only ties it to its state."""
    names = {parameter: name.replace(FSDP_PREFIX, "") for name, parameter in model.named_parameters()}
    own, groups = optimizer.param_groups, saved["param_groups"]
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in own]:
        raise DataError(f"'{path}': its optimizer trained other parameters; leave model.freeze_base as it was")
    places = zip(chain(*(group["params"] for group in groups)), chain(*(group["params"] for group in own)), strict=True)
    name_of = {number: names[parameter] for number, parameter in places}
    return {
        "state": {name_of[number]: state for number, state in saved["state"].items()},
        "param_groups": [{**group, "params": [name_of[number] for number in group["params"]]} for group in groups],
    }
