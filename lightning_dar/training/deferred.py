"""Building a network that no process holds whole.

The body is built on the meta device, without memory. Then each part in turn gets its weights, whole, and is sharded
before the next one: a process never holds more than its shards, the embedding and the head, and one sublayer.
"""

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from lightning_dar.checkpoint.load import DRAWS, Checkpoint, check_fits
from lightning_dar.model import Transformer, TransformerConfig, build_strategy
from lightning_dar.residual import ResidualConfig
from lightning_dar.training.parallelize import Fill


def build_deferred(config: TransformerConfig, residual: ResidualConfig) -> Transformer:
    """`build_transformer` without its weights: shapes only, but for the strategy, which is small and may hold
    buffers. Takes as many random numbers as that takes up to here. Raises UsageError as that does."""
    strategy = build_strategy(config, residual)
    with torch.device("meta"), _DrawAndForget():
        return Transformer(config, strategy)


def initialise(model: Transformer) -> Fill:
    """Gives each part the weights that `build_transformer` draws from the same global random state: every process
    draws them all, whatever their number, and keeps its shard."""

    def fill(name: str, part: nn.Module) -> None:
        _materialise(model, part)
        model.init_part(part)

    return fill


def read_from(model: Transformer, checkpoint: Checkpoint) -> Fill:
    """Gives each part its weights in a checkpoint, in the model's dtypes. Raises DataError where the two do not fit."""
    check_fits(model, checkpoint)

    def fill(name: str, part: nn.Module) -> None:
        _materialise(model, part)
        for key, tensor in part.state_dict(prefix=f"{name}.").items():
            tensor.copy_(checkpoint.tensors.read(key))

    return fill


def _materialise(model: Transformer, part: nn.Module) -> None:
    if part is not model.residual:
        part.to_empty(device="cpu")


class _DrawAndForget(TorchFunctionMode):
    """Draws into a tensor on the meta device take their random numbers all the same."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") not in DRAWS:
            return func(*args, **kwargs)
        tensor = args[0] if args else kwargs.pop("tensor")
        func(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), *args[1:], **kwargs)
        return tensor
