"""Paired bootstrap over documents: how sure is a difference in loss?

Own draws, as scipy.stats.bootstrap holds every resample of every change at once (10 times slower for 70 changes of 64
documents, gigabytes for thousands), and rank correlations need the same draws at all sites.
"""

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95  # share of the resamples that lie inside an interval
MIN_UNITS = 8  # of fewer documents the resamples are too much alike: their spread says nothing


def resampled_means(
    differences: np.ndarray, tokens: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0
) -> np.ndarray:
    """Mean differences per token, documents drawn with replacement.

    Paired: a document brings the losses of both sides, so what makes it hard for either cancels.

    Args:
        differences: [K, documents], summed loss of each document under K changes, less that without.
        tokens: [documents], predicted tokens of each document.
        resamples: draws.
        seed: the same seed draws the same documents, for every change.

    Returns:
        [K, resamples], in nats per token.
    """
    documents = len(tokens)
    draw = np.random.default_rng(seed)
    counts = draw.multinomial(documents, np.full(documents, 1 / documents), size=resamples).astype(np.float64)
    return differences @ counts.T / (counts @ tokens)


def percentile_intervals(resampled: np.ndarray) -> np.ndarray:
    """Lower and upper end, [K, 2], of K quantities [K, resamples]."""
    tail = (1 - LEVEL) / 2
    return np.quantile(resampled, [tail, 1 - tail], axis=1).T


def paired_intervals(differences: np.ndarray, tokens: np.ndarray, **draws: int) -> np.ndarray:
    """Percentile intervals, [K, 2], of `resampled_means`, in nats per token."""
    return percentile_intervals(resampled_means(differences, tokens, **draws))
