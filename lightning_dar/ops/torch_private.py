"""All that this package takes from PyTorch's private interface, seen to work with torch 2.6 to 2.14.

`tests/ops/test_torch_private.py` says which of these names broke.
"""

from collections.abc import Callable

import torch
from torch._compile import _disable_dynamo as opaque  # torch.compiler.disable, but loaded at the first call

__all__ = ["at_end_of_backward", "opaque", "running_backward"]

PRIVATE_NAMES = (
    "torch._compile._disable_dynamo",
    "torch._C._current_graph_task_id",
    "torch.autograd.Variable._execution_engine.queue_callback",
)


def running_backward() -> int | None:
    """A number that tells the backward pass running on this thread from all others; None outside of one."""
    number = torch._C._current_graph_task_id()
    return None if number == -1 else number


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Calls `callback` once, when the backward pass that is running has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)
