"""How the rate moves."""

import math

import pytest

from lightning_dar.training.optimizer import OptimizerConfig, schedule_factor


def schedule(total_steps=1000, **options):
    return schedule_factor(OptimizerConfig(**{"warmup_steps": 100, "min_lr_ratio": 0.1, **options}), total_steps)


@pytest.mark.parametrize(
    "step, factor",
    [
        (0, 0.01),  # the first step already learns
        (49, 0.5),
        (99, 1.0),
        (100, 1.0),
        (325, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2),  # a quarter of the cosine
        (550, 0.55),
        (1000, 0.1),
        (5000, 0.1),
    ],
)
def test_warmup_then_cosine_to_the_floor(step, factor):
    assert schedule()(step) == pytest.approx(factor, abs=1e-12)


def test_schedule_without_warmup_starts_at_the_peak():
    assert schedule(warmup_steps=0)(0) == 1.0


@pytest.mark.parametrize("total_steps", [0, 50, 100])
def test_run_no_longer_than_its_warmup(total_steps):
    factor = schedule(total_steps)
    assert [factor(step) for step in (0, 49, 99, 100)] == [0.01, 0.5, 1.0, 1.0]


def test_floor_of_zero():
    assert schedule(min_lr_ratio=0.0)(1000) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(
    "name, factors",  # at steps 99, 550, 800, 900, 999, 1000 and 5000
    [
        ("cosine", (1.0, 0.55, 0.2052800, 0.1271383, 0.1000027, 0.1, 0.1)),
        ("linear", (1.0, 0.55, 0.3, 0.2, 0.101, 0.1, 0.1)),
        ("wsd", (1.0, 1.0, 1.0, 0.55, 0.1045, 0.1, 0.1)),
    ],
)
def test_shapes_of_the_decay(name, factors):
    found = [schedule(schedule=name)(step) for step in (99, 550, 800, 900, 999, 1000, 5000)]
    assert found == pytest.approx(factors, abs=1e-6)


def test_wsd_decays_over_its_share_of_the_steps():
    factor = schedule(schedule="wsd", decay_ratio=0.5, min_lr_ratio=0.0)
    assert [factor(step) for step in (499, 500, 750, 1000)] == pytest.approx([1.0, 1.0, 0.5, 0.0])
    assert schedule(schedule="wsd", decay_ratio=0.0)(999) == 1.0
    whole = [schedule(schedule=name, decay_ratio=1.0) for name in ("wsd", "linear")]
    assert [whole[0](step) for step in range(1001)] == [whole[1](step) for step in range(1001)]
