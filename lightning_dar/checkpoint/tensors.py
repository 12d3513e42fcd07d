"""Named tensors that are read one at a time, whatever kind of file they lie in."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PIECE_BYTES = 2**20  # fits a processor's cache: larger pieces took twice the time


class TensorInfo(NamedTuple):
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Tensors:
    """Base class. `infos` has every name; nothing else is held in memory."""

    infos: Mapping[str, TensorInfo]

    def read(self, name: str) -> Tensor:
        """The tensor, on the CPU. Raises DataError where the file turns out damaged."""
        raise NotImplementedError

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The tensor as consecutive slices of its first dimension, where the file allows; together they are it."""
        yield self.read(name)


class InMemory(Tensors):
    """Tensors of a dict: those of a memory-mapped file, or freshly made ones."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._tensors = tensors
        self.infos = {name: TensorInfo(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


class Joined(Tensors):
    """Several collections as one; of a name that two have, the first counts."""

    def __init__(self, *parts: Tensors):
        self._owner = {name: part for part in reversed(parts) for name in part.infos}
        self.infos = {name: part.infos[name] for name, part in self._owner.items()}

    def read(self, name: str) -> Tensor:
        return self._owner[name].read(name)

    def pieces(self, name: str) -> Iterator[Tensor]:
        return self._owner[name].pieces(name)


class Translated(Tensors):
    """Tensors under other names."""

    def __init__(self, tensors: Tensors, translate: Callable[[str], str]):
        self._tensors = tensors
        self._original = {translate(name): name for name in tensors.infos}
        self.infos = {name: tensors.infos[original] for name, original in self._original.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors.read(self._original[name])

    def pieces(self, name: str) -> Iterator[Tensor]:
        return self._tensors.pieces(self._original[name])


class Unprefixed(Tensors):
    """The tensors whose names start with the prefix, under what follows it."""

    def __init__(self, tensors: Tensors, prefix: str):
        self._tensors, self._prefix = tensors, prefix
        self.infos = {
            name.removeprefix(prefix): info for name, info in tensors.infos.items() if name.startswith(prefix)
        }

    def read(self, name: str) -> Tensor:
        return self._tensors.read(f"{self._prefix}{name}")

    def pieces(self, name: str) -> Iterator[Tensor]:
        return self._tensors.pieces(f"{self._prefix}{name}")
