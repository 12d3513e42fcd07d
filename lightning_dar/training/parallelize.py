"""What training wraps around the transformer, in place: recomputation, compilation, sharding.

None of the three adds a module, so parameters keep their names.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from lightning_dar.errors import UsageError
from lightning_dar.model import Sublayer, Transformer

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
