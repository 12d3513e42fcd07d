"""Bytes held for backward, counted exactly: the bounds the project promises, and the counter itself."""

import pytest
import torch

from benchmarks.held import held_bytes
from benchmarks.step import Entry, Setting, measure_held
from lightning_dar.ops import open_history
from lightning_dar.residual import available_residuals

FAST = ("fused", "two_phase")
STANDARD = Entry("standard", "none")


def small(layers: int, hidden_size: int) -> Setting:
    """Fewer tokens and less width than the benchmark: the counts are proportional to tokens, and nearly to width."""
    return Setting(layers=layers, hidden_size=hidden_size, seq_len=16, batch_size=1, vocab_size=64)


@pytest.mark.parametrize(("layers", "hidden_size", "sublayer", "block"), [(12, 128, 1.15, 1.03), (36, 64, 1.18, 1.04)])
@pytest.mark.parametrize("backend", FAST)
def test_against_standard(backend: str, layers: int, hidden_size: int, sublayer: float, block: float) -> None:
    setting = small(layers, hidden_size)
    standard = measure_held(STANDARD, setting)
    assert 1 < measure_held(Entry("delta-sublayer", backend), setting) / standard <= sublayer
    assert 1 < measure_held(Entry("delta-block", backend), setting) / standard <= block


@pytest.mark.parametrize("strategy", available_residuals())
@pytest.mark.parametrize("backend", FAST)
def test_linear_in_depth(backend: str, strategy: str) -> None:
    shallow, deep = (measure_held(Entry(strategy, backend), small(layers, 32)) for layers in (36, 72))
    assert 1.9 < deep / shallow < 2.1


@pytest.mark.parametrize("backend", FAST)
def test_sublayer_attnres_is_linear_in_depth(backend: str) -> None:
    entry = Entry("attnres", backend, {"granularity": "sublayer"})
    assert measure_held(entry, small(72, 32)) / measure_held(entry, small(36, 32)) < 2.1


def test_naive_is_quadratic() -> None:
    """The counter sees what stacking keeps."""
    entry = Entry("delta-sublayer", "naive")
    assert measure_held(entry, small(24, 32)) / measure_held(entry, small(12, 32)) > 3


def test_a_two_phase_history_holds_its_sources_and_phase_one_once() -> None:
    rows, tokens, dim = 24, 10, 8
    query, gain = torch.randn(rows, dim, requires_grad=True), torch.ones(rows, dim, requires_grad=True)
    source = torch.randn(1, tokens, dim, requires_grad=True)

    def forward() -> torch.Tensor:
        history, total = open_history(query, gain, 1e-6, backend="two_phase"), torch.zeros(())
        for row in range(rows):
            history = history.append(source, after=row - 1)
            total = total + history.read(row, stream=source).sum()
        return total

    values, norms, queries = tokens * rows * dim, tokens * rows, rows * dim
    phase_one = tokens * rows * (dim + 1)  # every chunk begins with a source
    assert held_bytes(forward, [query, gain, source]) == 4 * (values + norms + queries + phase_one)


def test_counter_counts_storages_once_and_buffers_outside_autograd() -> None:
    weight, kept = torch.randn(8, 8, requires_grad=True), []

    def forward() -> torch.Tensor:
        hidden = weight.exp()  # saved by exp, and by both products
        kept.append(torch.zeros(100))  # kept by nobody that autograd knows
        return (hidden * hidden).sum()

    assert held_bytes(forward, [weight]) == 8 * 8 * 4 + 100 * 4


def test_counts_repeat_to_the_byte() -> None:
    entry, setting = Entry("delta-sublayer", "two_phase"), small(4, 32)
    assert measure_held(entry, setting) == measure_held(entry, setting)
