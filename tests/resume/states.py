"""What a checkpoint of any kind holds: weights and the optimizer's moments, by the parameters' names."""

from pathlib import Path

import torch
from torch import Tensor

from lightning_dar.checkpoint.load import open_checkpoint
from lightning_dar.checkpoint.tensors import ShardedTensors

MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")


def state_of(checkpoint: Path) -> dict[str, Tensor]:
    return weights_of(checkpoint) | (_sharded(checkpoint) if checkpoint.is_dir() else _single(checkpoint))


def weights_of(checkpoint: Path) -> dict[str, Tensor]:
    tensors = open_checkpoint(checkpoint).tensors
    return {name: tensors.read(name) for name in tensors.infos}


def keys_in(checkpoint: Path) -> list[str]:
    """The names of the weights as they lie in it."""
    if checkpoint.is_dir():
        names = ShardedTensors(checkpoint, "").infos
        return [name.removeprefix("state_dict.") for name in names if name.startswith("state_dict.")]
    return list(torch.load(checkpoint, weights_only=True)["state_dict"])


def _sharded(folder: Path) -> dict[str, Tensor]:
    """A folder has them by name."""
    tensors = ShardedTensors(folder, "optimizer_0.state.model.")
    return {name: tensors.read(name) for name in tensors.infos if name.endswith(MOMENTS)}


def _single(file: Path) -> dict[str, Tensor]:
    """A file has them by number: a number's place in the groups is that of a parameter, in the model's own order."""
    saved = torch.load(file, weights_only=True)["optimizer_states"][0]
    grouped: dict[str, list[str]] = {"body": [], "other": [], "routing": []}
    for name, _ in open_checkpoint(file).build().named_parameters():
        body = name.startswith("sublayers.") and name.endswith("_proj.weight")
        grouped["routing" if name.startswith("residual.") else "body" if body else "other"].append(name)
    found = {}
    for group in saved["param_groups"]:
        for number, name in zip(group["params"], grouped[group["name"]], strict=True):
            state = saved["state"][number]
            found |= {f"{name}.{moment}": state[moment] for moment in MOMENTS if moment in state}
    return found


def different(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """The names of those that are not the same to the last bit."""
    assert found.keys() == expected.keys()
    return [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]


def furthest(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference anywhere, relative to its tensor's largest value."""
    assert found.keys() == expected.keys()
    assert all(tensor.isfinite().all() for tensor in found.values())
    return max(float((found[name] - tensor).abs().max() / tensor.abs().max()) for name, tensor in expected.items())
