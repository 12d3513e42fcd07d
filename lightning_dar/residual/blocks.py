"""Dividing the layers into blocks, for the strategies whose sources are blocks."""

from lightning_dar.errors import UsageError
from lightning_dar.residual.base import Shape


def layers_per_block(shape: Shape, num_blocks: int) -> int:
    """ceil(L / num_blocks). Raises UsageError unless 1 <= num_blocks <= L."""
    if not 1 <= num_blocks <= shape.num_layers:
        raise UsageError(
            f"model.residual.options.num_blocks={num_blocks}: must be from 1 to model.num_layers={shape.num_layers}"
        )
    return -(-shape.num_layers // num_blocks)
