"""Bootstrap intervals, rank correlations and documents against analytic cases and plain loops."""

import numpy as np
import pytest
import torch

from lightning_dar.diagnostics.statistics import (
    consecutive_ends,
    paired_intervals,
    spearman,
    spearman_of_columns,
    target_documents,
    units,
)


def test_an_interval_is_that_of_the_mean():
    """For many equal documents the mean is normal: 1.96 standard errors to either side."""
    draw = np.random.default_rng(1)
    documents, tokens = 400, 50
    differences = draw.normal(0.3, 2.0, size=(2, documents)) * tokens
    intervals = paired_intervals(differences, np.full(documents, tokens), resamples=20_000)
    for (low, high), row in zip(intervals, differences / tokens, strict=True):
        error = 1.96 * row.std() / documents**0.5
        assert low == pytest.approx(row.mean() - error, abs=0.03 * error)
        assert high == pytest.approx(row.mean() + error, abs=0.03 * error)


def test_documents_weigh_by_their_tokens():
    """One document holds nearly all tokens and is drawn 0, 1 or more times; a plain loop over the same draws agrees."""
    differences, tokens = np.array([[100.0, -1.0, 4.0]]), np.array([1000, 10, 20])
    intervals = paired_intervals(differences, tokens, resamples=500, seed=3)
    counts = np.random.default_rng(3).multinomial(3, [1 / 3] * 3, size=500)
    means = [
        sum(c * d for c, d in zip(row, differences[0], strict=True))
        / sum(c * t for c, t in zip(row, tokens, strict=True))
        for row in counts
    ]
    assert intervals[0] == pytest.approx(np.quantile(means, [0.025, 0.975]))


def test_equal_differences_have_no_width_and_seeds_repeat():
    tokens = np.array([5, 7, 9])
    assert paired_intervals(0.25 * tokens[None], tokens) == pytest.approx(0.25)
    noise = np.random.default_rng(0).normal(size=(1, 3))
    assert (paired_intervals(noise, tokens, seed=1) == paired_intervals(noise, tokens, seed=1)).all()
    assert (
        paired_intervals(noise, tokens, seed=1, resamples=50) != paired_intervals(noise, tokens, resamples=50)
    ).any()


def ranked(values):
    """Mean rank of equal values, by counting."""
    return [sum(o < v for o in values) + (sum(o == v for o in values) + 1) / 2 for v in values]


def test_spearman_is_the_correlation_of_ranks():
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 6, 30).tolist(), draw.normal(size=30).tolist()
    rx, ry = ranked(x), ranked(y)
    mx, my = sum(rx) / 30, sum(ry) / 30
    above = sum((a - mx) * (b - my) for a, b in zip(rx, ry, strict=True))
    below = (sum((a - mx) ** 2 for a in rx) * sum((b - my) ** 2 for b in ry)) ** 0.5
    assert spearman(x, y) == pytest.approx(above / below)


def test_spearman_of_columns_is_that_of_each():
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 4, 9), draw.integers(0, 4, (9, 20))
    y[:, 3] = 1
    found = spearman_of_columns(x, y)
    for column, value in zip(y.T.tolist(), found, strict=True):
        expected = spearman(x.tolist(), column)
        assert np.isnan(value) if expected is None else value == pytest.approx(expected)
        if expected is not None:
            assert value == pytest.approx(np.corrcoef(ranked(x.tolist()), ranked(column))[0, 1])
    assert np.isnan(found[3])


def test_spearman_of_orders():
    assert spearman([1, 2, 3, 4], [1, 8, 27, 640]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, -9]) == pytest.approx(-1)
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert spearman([1, 2], [1, 2]) is None
    with pytest.raises(ValueError, match="3 values against 2"):
        spearman([1, 2, 3], [1, 2])


def test_documents_of_targets():
    end = 9
    windows = torch.tensor([[1, 2, 9, 3], [4, 5, 6, 7], [9, 1, 9, 2]])
    documents = target_documents(windows, end, consecutive_ends(windows, end))
    assert documents.tolist() == [[0, 0, 1], [1, 1, 1], [2, 2, 3]]  # an end token belongs to what it ends


def test_windows_left_out_still_end_documents():
    windows = torch.tensor([[1, 2, 3], [4, 5, 6]])
    assert target_documents(windows, 9, torch.tensor([0, 4])).tolist() == [[0, 0], [1, 1]]
    assert target_documents(windows, 9, torch.tensor([2, 2])).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("documents", "windows", "unit"),
    [(1, 3, "window"), (7, 8, "window"), (8, 40, "document"), (7, 7, "document"), (4, 3, "document")],
)
def test_few_documents_fall_back_to_windows_where_those_are_more(documents, windows, unit):
    numbers = (torch.arange(2 * windows) * documents // (2 * windows)).view(windows, 2)
    drawn, name = units(numbers)
    assert name == unit
    assert drawn.tolist() == (numbers.tolist() if unit == "document" else [[n, n] for n in range(windows)])
