"""Intervals against scipy, and how often they cover a difference that is zero."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from lightning_dar.study.cells import Measured
from lightning_dar.study.summary import difference, document_interval, mean_interval

DRAWS = 200


def measured(losses, tokens) -> Measured:
    losses, tokens = np.asarray(losses, dtype=float), np.asarray(tokens)
    return Measured(
        loss=float(losses.sum() / tokens.sum()),
        bits_per_byte=None,
        unit="document",
        unit_losses=losses.tolist(),
        unit_tokens=tokens.tolist(),
        parameters=1,
        residual_parameters=0,
        steps=1,
        train_tokens=1,
        train_flops=1.0,
        tokens_per_second=None,
        seconds=1.0,
        sharpness=[],
        curves={},
        versions={},
    )


def networks(draw, documents=150, spread=0.02):
    """Two networks of one quality: documents differ in length and difficulty, the two by noise for each document."""
    tokens = draw.integers(20, 400, documents)
    hard = draw.normal(3, 0.5, documents)
    return [measured(tokens * (hard + draw.normal(0, spread, documents)), tokens) for _ in range(2)]


def test_interval_over_seeds_is_students():
    values = [0.03, -0.01, 0.02, 0.05, 0.00]
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(values), low, high), rel=1e-12)


def test_one_seed_has_no_interval():
    assert mean_interval([0.5]).low is None


def test_interval_over_documents_is_the_bootstrap_of_scipy():
    first, second = networks(np.random.default_rng(0))
    found = document_interval(first, second)
    by_document = np.asarray(first.unit_losses) - np.asarray(second.unit_losses)

    def per_token(losses, tokens, axis=-1):
        return losses.sum(axis) / tokens.sum(axis)

    truth = stats.bootstrap(
        (by_document, np.asarray(first.unit_tokens)),
        per_token,
        paired=True,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    width = truth.high - truth.low
    assert found.mean == pytest.approx(first.loss - second.loss, abs=1e-12)
    assert found.low == pytest.approx(truth.low, abs=0.06 * width)
    assert found.high == pytest.approx(truth.high, abs=0.06 * width)


def test_a_null_study_covers_zero_over_documents():
    covered = 0
    for seed in range(DRAWS):
        found = document_interval(*networks(np.random.default_rng(seed)))
        covered += found.low <= 0 <= found.high
    assert 0.93 <= covered / DRAWS <= 0.97


def test_a_null_study_covers_zero_over_seeds():
    draw, covered = np.random.default_rng(0), 0
    for _ in range(DRAWS):
        pairs = [networks(draw, documents=40) for _ in range(3)]
        found = mean_interval([first.loss - second.loss for first, second in pairs])
        covered += found.low <= 0 <= found.high
    assert 0.93 <= covered / DRAWS <= 0.97


def test_a_difference_that_is_there_is_found_and_seeds_are_paired():
    pairs = [networks(np.random.default_rng(seed)) for seed in range(3)]
    better = {seed: replace(a, loss=a.loss - 0.5) for seed, (a, _) in enumerate(pairs)}
    found = difference(better, {seed: b for seed, (_, b) in enumerate(pairs)} | {9: pairs[0][1]})
    assert found.seeds == [0, 1, 2]
    assert found.wins == 3
    assert found.over_seeds.high < 0


def test_other_documents_are_not_compared():
    first, _ = networks(np.random.default_rng(0))
    second, _ = networks(np.random.default_rng(1))
    assert difference({0: first}, {0: second}) is None
