"""Spearman's rank correlation: does one quantity order things as another does?"""

from collections.abc import Sequence

import numpy as np


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's correlation of the ranks, from -1 to 1; equal values share their mean rank.

    None for fewer than three pairs, or where one of the two is constant: nothing is ordered.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} values against {len(y)}: pairs are needed")
    ranks = [_ranks(np.asarray(values, dtype=np.float64)) for values in (x, y)]
    if len(x) < 3 or any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return (last - (sizes - 1) / 2)[group]
