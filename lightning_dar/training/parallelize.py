"""What training wraps around the transformer, in place: recomputation, compilation, sharding.

None of the three adds a module, so parameters keep their names. A network that no process holds whole is built on the
meta device (`build_deferred`), without memory; then each part in turn gets its weights, whole, and is sharded before
the next one (`Fill`): a process never holds more than its shards, the embedding and the head, and one sublayer.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode

from lightning_dar.checkpoint.load import DRAWS, Checkpoint, check_fits
from lightning_dar.errors import UsageError
from lightning_dar.model import Sublayer, Transformer, TransformerConfig, build_strategy
from lightning_dar.residual import ResidualConfig

ActivationCheckpointing = float | str
Fill = Callable[[str, nn.Module], None]


def parallelize(
    model: Transformer,
    activation_checkpointing: ActivationCheckpointing = "none",
    compile_backend: str | Callable[..., Any] | None = None,
    mesh: DeviceMesh | None = None,
    compute_dtype: torch.dtype | None = None,
    fill: Fill | None = None,
) -> None:
    """Wraps the model; what recomputes lies inside what is compiled, and both inside what is sharded.

    Args:
        model: changed in place.
        activation_checkpointing: see `checkpoint_activations`.
        compile_backend: compiles every sublayer by itself; the loop and the depth reads between them stay eager.
        mesh: shards over its data-parallel ranks.
        compute_dtype: see `shard`.
        fill: see `shard`.

    Raises:
        UsageError: an unknown mode of checkpointing, or a mesh with tensor parallelism.
    """
    checkpoint_activations(model, activation_checkpointing)
    if compile_backend is not None:
        for layer in model.layers:
            for sublayer in (layer.attention, layer.mlp):
                sublayer.compile(backend=compile_backend)
    if mesh is not None:
        shard(model, mesh, compute_dtype, fill)


def checkpoint_activations(model: Transformer, mode: ActivationCheckpointing) -> None:
    """Recomputes activations in the backward instead of holding them.

    `sublayer`: each sublayer is a region of its own, so what it reads is held, one [M, D] a site. Reads and writes
    run once. `full`: each layer is a region, its reads and writes included, so the stream is held once a layer. Both
    hold the sources besides, which later layers read. A fraction: that share of the layers, evenly spread, as `full`.
    `none`: nothing. Raises UsageError for anything else.
    """
    layers = checkpointed_layers(mode, model.config.num_layers)
    for number, layer in enumerate(model.layers):
        layer.recompute = number in layers
        layer.attention.recompute = layer.mlp.recompute = mode == "sublayer"


def checkpointed_layers(mode: ActivationCheckpointing, num_layers: int) -> frozenset[int]:
    """The layers that are recomputed whole. Raises UsageError for an unknown mode."""
    if mode in ("none", "sublayer"):
        return frozenset()
    if mode == "full":
        mode = 1.0
    if isinstance(mode, str) or not 0 <= mode <= 1:
        takes = "none, sublayer, full, or a fraction of the layers from 0 to 1"
        raise UsageError(f"model.activation_checkpointing={mode}: must be {takes}")
    return frozenset(layer for layer in range(num_layers) if int((layer + 1) * mode) > int(layer * mode))


def shard(
    model: Transformer, mesh: DeviceMesh, compute_dtype: torch.dtype | None = None, fill: Fill | None = None
) -> None:
    """Shards parameters, gradients and optimizer state over the mesh's data-parallel ranks (FSDP2).

    Every sublayer is a unit of its own; embedding, head and all routing parameters belong to the root, so a query
    that any site needs is always whole.

    Args:
        model: changed in place.
        mesh: with the dimensions `data_parallel` and `tensor_parallel`, as Lightning makes it.
        compute_dtype: the sublayers' weights are gathered in it, under an autocast to it; gradients are reduced in
            fp32. The root stays in fp32: queries and gains are never rounded.
        fill: for a model on the meta device, (name, part) -> None gives a part its weights; it is called just before
            the part is sharded, in the order of `Transformer.parts`.

    Raises:
        UsageError: a mesh with tensor parallelism.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if mesh["tensor_parallel"].size() > 1:
        raise UsageError("trainer.strategy: tensor parallelism is not supported; set tensor_parallel_size to 1")
    policy = MixedPrecisionPolicy()
    if compute_dtype is not None:
        policy = MixedPrecisionPolicy(compute_dtype, torch.float32, cast_forward_inputs=False)
    for name, part in model.parts():
        if fill is not None:
            fill(name, part)
        if isinstance(part, Sublayer):
            fully_shard(part, mesh=mesh["data_parallel"], mp_policy=policy)
    fully_shard(model, mesh=mesh["data_parallel"])


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
