"""Sharding the transformer under Lightning's `ModelParallelStrategy` (FSDP2)."""

from datetime import timedelta

from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.device_mesh import DeviceMesh

from lightning_dar.errors import UsageError
from lightning_dar.model import Transformer


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


def parallelize(model: Transformer, mesh: DeviceMesh) -> None:
    """Shards parameters, gradients and optimizer state over the mesh's data-parallel ranks, in place.

    Every sublayer is a unit of its own; embedding, head and all routing parameters belong to the root, so a query
    that any site needs is always whole. Raises UsageError for a mesh with tensor parallelism.
    """
    from torch.distributed.fsdp import fully_shard

    if mesh["tensor_parallel"].size() > 1:
        raise UsageError("trainer.strategy: tensor parallelism is not supported; set tensor_parallel_size to 1")
    data_parallel = mesh["data_parallel"]
    for sublayer in model.sublayers:
        fully_shard(sublayer, mesh=data_parallel)
    fully_shard(model, mesh=data_parallel)
