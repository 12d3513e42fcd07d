"""Lightning's sharding strategies, set up for this model."""

from datetime import timedelta

from lightning.pytorch.strategies import ModelParallelStrategy


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
