"""Depth-read problems small enough to run hundreds of: a history written and read in a given pattern."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dar.ops import open_history

FAST = ("fused", "two_phase")
EPS = 1e-6


@dataclass(frozen=True)
class Problem:
    """Leaves of one forward: a source a row (source 0 before the first), queries, gains, and what else reads take."""

    sources: list[Tensor]  # S of [B, T, D]
    query: Tensor  # [S, D]
    gain: Tensor  # [S, D]
    stream: Tensor  # [B, T, D]
    gate: Tensor | None  # [S]
    null: Tensor | None  # [S, D]

    @property
    def leaves(self) -> dict[str, Tensor]:
        named = {"query": self.query, "gain": self.gain, "stream": self.stream}
        named |= {f"source {i}": source for i, source in enumerate(self.sources)}
        named |= {} if self.gate is None else {"gate": self.gate}
        return named | ({} if self.null is None else {"null": self.null})


def make(
    num_rows: int,
    shape: tuple[int, int, int] = (2, 3, 8),
    *,
    dtype: torch.dtype = torch.float32,
    query_std: float = 0.5,
    gate: bool = False,
    null: bool = False,
    seed: int = 0,
) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    dim = shape[-1]

    def draw(*size: int, std: float = 1.0, mean: float = 0.0) -> Tensor:
        values = torch.randn(*size, generator=generator, dtype=torch.float64) * std + mean
        return values.to(dtype).requires_grad_()

    return Problem(
        [draw(*shape) for _ in range(num_rows)],
        draw(num_rows, dim, std=query_std),
        draw(num_rows, dim, std=0.2, mean=1.0),
        draw(*shape),
        draw(num_rows, std=0.5) if gate else None,
        draw(num_rows, dim) if null else None,
    )


def every_row(problem: Problem, backend: str) -> list[Tensor]:
    """Source i is written before row i reads all so far: additive reads, as `delta-sublayer` does."""
    history = open_history(problem.query, problem.gain, EPS, backend=backend)
    outputs = []
    for row, source in enumerate(problem.sources):
        history = history.append(source, after=row - 1)
        gate = None if problem.gate is None else problem.gate[row]
        null = None if problem.null is None else problem.null[row].expand_as(source)
        outputs.append(history.read(row, stream=problem.stream, gate=gate, null=null))
    return outputs


def replacing(problem: Problem, backend: str) -> list[Tensor]:
    """The newest source is read before it is written, as `attnres` does; nothing is added to a stream."""
    history = open_history(problem.query, problem.gain, EPS, backend=backend)
    outputs = []
    for row, source in enumerate(problem.sources):
        outputs.append(history.read(row, current=source))
        history = history.append(source, after=row)
    return outputs


def in_blocks(problem: Problem, backend: str) -> list[Tensor]:
    """A source every third row, two at once in front; reads in between see the same sources."""
    history = open_history(problem.query, problem.gain, EPS, backend=backend)
    outputs = []
    for row, source in enumerate(problem.sources):
        if row % 3 == 1:
            history = history.append(source, after=row - 1)
        if row == 1:
            history = history.append(problem.sources[0], after=row - 1)
        outputs.append(history.read(row, stream=problem.stream) if row else problem.stream)
    return outputs


PATTERNS: dict[str, Callable[[Problem, str], list[Tensor]]] = {
    "every_row": every_row,
    "replacing": replacing,
    "in_blocks": in_blocks,
}


def run(problem: Problem, pattern: str, backend: str) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs [S, B, T, D], and the gradients by name of a fixed random projection of them."""
    outputs = torch.stack(PATTERNS[pattern](problem, backend))
    leaves = problem.leaves
    grads = torch.autograd.grad(outputs, list(leaves.values()), projection(outputs), allow_unused=True)
    named = {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None}
    return outputs.detach(), named


def projection(outputs: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(outputs.shape, generator=generator).to(outputs.dtype)


def distance(one: Tensor, other: Tensor) -> float:
    """Relative error in the Euclidean norm."""
    one, other = one.double(), other.double()
    return ((one - other).norm() / other.norm().clamp_min(1e-30)).item()


def assert_same(
    found: tuple[Tensor, dict[str, Tensor]], wanted: tuple[Tensor, dict[str, Tensor]], tolerance: float
) -> None:
    """Outputs and each gradient agree to a relative `tolerance`; a gradient that ought to vanish is compared
    to the largest."""
    assert distance(found[0], wanted[0]) <= tolerance
    assert found[1].keys() == wanted[1].keys()
    scale = max(grad.norm().item() for grad in wanted[1].values())
    for name, grad in wanted[1].items():
        assert torch.isfinite(found[1][name]).all(), name
        error = (found[1][name].double() - grad.double()).norm().item()
        assert error <= tolerance * max(grad.norm().item(), 0.01 * scale), f"{name}: {error}"
