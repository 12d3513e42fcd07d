import pytest
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh


@pytest.fixture(scope="package")
def mesh():
    """A group of one process: sharding without anybody to share with."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    dist.destroy_process_group()
