"""Spearman's rank correlation: does one quantity order things as another does?"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's correlation of the ranks, from -1 to 1; equal values share their mean rank.

    None for fewer than three pairs, or where one of the two is constant: nothing is ordered.
    """
    if len(x) != len(y):
        raise ValueError(f"{len(x)} values against {len(y)}: pairs are needed")
    if len(x) < 3:
        return None
    (value,) = spearman_of_columns(np.asarray(x), np.asarray(y)[:, None])
    return None if np.isnan(value) else float(value)


def spearman_of_columns(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's correlation of `x` [n] with each column of `y` [n, K], as [K]; NaN where one of the two is constant.

    `scipy.stats.spearmanr` would also correlate all columns with each other, and there are thousands of them.
    """
    a, b = (ranks - ranks.mean(0) for ranks in (rankdata(x)[:, None], rankdata(y, axis=0)))
    scale = np.sqrt((a**2).sum(0) * (b**2).sum(0))
    return np.divide((a * b).sum(0), scale, out=np.full(y.shape[1], np.nan), where=scale > 0)
