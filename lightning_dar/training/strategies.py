"""Lightning's sharding strategies, set up for this model."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import nn

from lightning_dar.model import Transformer
from lightning_dar.model.attention import Attention
from lightning_dar.model.mlp import MLP
from lightning_dar.training.saving import put_in_place, remove, writing

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
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        path = Path(self.broadcast(filepath))
        with writing(path, self.is_global_zero) as partial:
            if self.is_global_zero:
                remove(partial)
            self.barrier()
            super().save_checkpoint(checkpoint, partial, storage_options)
        if self.is_global_zero:
            put_in_place(path)


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
            auto_wrap_policy={Attention, MLP},
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
