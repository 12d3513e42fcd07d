"""Named tensors that are read one at a time, whatever kind of file they lie in."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class TensorInfo(NamedTuple):
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Tensors:
    """Base class. `infos` has every name, `others` the names of what lies beside them in the same files; nothing else
    is held in memory."""

    infos: Mapping[str, TensorInfo]
    others: Sequence[str] = ()

    def read(self, name: str) -> Tensor:
        """The tensor, on the CPU, perhaps mapped from its file: to be copied before it is kept or changed.

        Raises:
            DataError: the file turns out damaged.
        """
        raise NotImplementedError


class InMemory(Tensors):
    """Tensors of a dict: those of a memory-mapped file, or freshly made ones."""

    def __init__(self, entries: Mapping[str, Any]):
        self._tensors = {name: entry for name, entry in entries.items() if isinstance(entry, Tensor)}
        self.infos = {name: TensorInfo(tuple(tensor.shape), tensor.dtype) for name, tensor in self._tensors.items()}
        self.others = [name for name in entries if name not in self._tensors]

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


class Joined(Tensors):
    """Several collections as one; of a name that two have, the first counts."""

    def __init__(self, *parts: Tensors):
        self._owner = {name: part for part in reversed(parts) for name in part.infos}
        self.infos = {name: part.infos[name] for name, part in self._owner.items()}

    def read(self, name: str) -> Tensor:
        return self._owner[name].read(name)


class Translated(Tensors):
    """Tensors under other names."""

    def __init__(self, tensors: Tensors, translate: Callable[[str], str]):
        self._tensors = tensors
        self._original = {translate(name): name for name in tensors.infos}
        self.others = [name for name in tensors.infos if self._original[translate(name)] != name]  # twice
        self.infos = {name: tensors.infos[original] for name, original in self._original.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors.read(self._original[name])


class Unprefixed(Tensors):
    """The tensors whose names start with the prefix, under what follows it."""

    def __init__(self, tensors: Tensors, prefix: str):
        self._tensors, self._prefix = tensors, prefix
        self.infos = {
            name.removeprefix(prefix): info for name, info in tensors.infos.items() if name.startswith(prefix)
        }
        self.others = [*(name for name in tensors.infos if not name.startswith(prefix)), *tensors.others]

    def read(self, name: str) -> Tensor:
        return self._tensors.read(f"{self._prefix}{name}")
