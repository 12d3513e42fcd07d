"""The benchmark of the measuring callbacks: what it runs, and its arithmetic. No time is asserted."""

import pytest

from benchmarks.diagnostics import Clock, costs, measure
from benchmarks.step import Setting


def test_a_row_of_numbers():
    setting = Setting(layers=2, hidden_size=16, seq_len=8, batch_size=1, vocab_size=32)
    row = measure("delta-sublayer", setting, rounds=1)
    assert list(row)[-4:] == ["step_seconds", "routing_cost_steps", "all_cost_steps", "overhead_percent"]
    assert row["step_seconds"] > 0
    some, everything = row["routing_cost_steps"], row["all_cost_steps"]
    assert row["overhead_percent"] == pytest.approx(100 * (some / 50 + (everything - some) / 100), abs=0.1)


def test_costs_are_against_plain_neighbours():
    clock = Clock()
    first = [9.0, 9.0, 9.0, 9.0]  # warmup
    clock.starts = [sum([*first, 1.0, 1.5, 1.0, 1.8, 1.0, 2.5, 3.0, 6.0, 1.0][:count]) for count in range(14)]
    assert costs(clock.steps) == pytest.approx(((0.5 + 0.25) / 2, (0.8 + 2.0) / 2))
