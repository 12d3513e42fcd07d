"""Bytes held for backward, counted exactly: every storage once, whoever keeps it."""

import gc
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def held_bytes(forward: Callable[[], Tensor], owned: Iterable[Tensor]) -> int:
    """Bytes alive after `forward` because a backward may still come.

    Counted are the storages that autograd saves, and any other tensor alive after the forward that was not
    before: buffers that an operation keeps outside autograd's own saving.

    Args:
        forward: runs the forward pass and returns its loss.
        owned: parameters and inputs, which live anyway.
    """
    before = [*owned, *live_tensors()]  # kept, so that no address is used again
    gc.freeze()  # from here on the collector looks at what the forward makes, not at a million older objects
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[_storage(tensor)] = tensor
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = forward()
        gc.collect()
        after = live_tensors()
    finally:
        gc.unfreeze()
    sizes = {pointer: tensor.untyped_storage().nbytes() for pointer, tensor in saved.items()}
    for tensor in after:
        sizes.setdefault(_storage(tensor), tensor.untyped_storage().nbytes())
    known = {_storage(tensor) for tensor in [*before, loss]}
    return sum(size for pointer, size in sizes.items() if pointer not in known)


def live_tensors() -> list[Tensor]:
    tensors = [item for item in gc.get_objects() if issubclass(type(item), Tensor)]
    return [item for item in tensors if not issubclass(type(item), FakeTensor)]  # what a compiler keeps has no storage


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
