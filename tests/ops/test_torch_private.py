"""What the depth reads take from PyTorch's private interface: each test names what broke."""

from functools import reduce
from pathlib import Path

import pytest
import torch

import lightning_dar
from lightning_dar.ops import torch_private
from lightning_dar.ops.torch_private import at_end_of_backward, opaque, running_backward


@pytest.mark.parametrize("name", torch_private.PRIVATE_NAMES)
def test_the_name_is_there(name: str) -> None:
    __import__("torch._compile")
    assert callable(reduce(getattr, name.removeprefix("torch.").split("."), torch)), name


def test_no_other_file_uses_private_names() -> None:
    package = Path(lightning_dar.__file__).parent
    private = ("torch._C", "torch._compile", "torch._dynamo", "_execution_engine", "_graph_task")
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(name in path.read_text() for name in private)
    }
    assert found == {"ops/torch_private.py"}


class _Noted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, notes):
        ctx.notes = notes
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.notes is not None:
            if running_backward() not in ctx.notes:
                at_end_of_backward(lambda: ctx.notes.append("end"))
            ctx.notes.append(running_backward())
        return grad, None


def test_current_graph_task_id_tells_passes_apart_and_queue_callback_calls_at_their_end() -> None:
    notes: list = []
    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        _Noted.apply(_Noted.apply(x, notes), notes).sum().backward()
    first, again, end, second, *rest = notes
    assert first == again and isinstance(first, int) and end == "end"
    assert second != first and rest == [second, "end"]
    assert running_backward() is None


def test_disable_dynamo_hides_a_function_from_the_compiler() -> None:
    seen = []

    @opaque
    def hidden(x):
        seen.append(torch.compiler.is_compiling())
        return x + 1

    def visible(x):
        return hidden(x * 2) * 3

    assert torch.compile(visible, backend="eager")(torch.ones(2)).tolist() == [9, 9]
    assert seen == [False]
