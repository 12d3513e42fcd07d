"""Sharding the transformer under Lightning's `ModelParallelStrategy` (FSDP2)."""

from torch.distributed.device_mesh import DeviceMesh

from lightning_dar.model import Transformer


def parallelize(model: Transformer, mesh: DeviceMesh) -> None:
    """Shards parameters, gradients and optimizer state over the mesh's data-parallel ranks, in place.

    Every sublayer is a unit of its own; embedding, head and all routing parameters belong to the root, so a query
    that any site needs is always whole.
    """
    from torch.distributed.fsdp import fully_shard

    data_parallel = mesh["data_parallel"]
    for sublayer in model.sublayers:
        fully_shard(sublayer, mesh=data_parallel)
    fully_shard(model, mesh=data_parallel)
