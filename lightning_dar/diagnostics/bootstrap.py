"""Paired bootstrap over documents: how sure is a difference in loss?"""

import numpy as np

RESAMPLES = 2000


def paired_intervals(
    differences: np.ndarray, tokens: np.ndarray, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> np.ndarray:
    """Percentile intervals of mean differences per token, documents drawn with replacement.

    Paired: a document brings the losses of both sides, so what makes it hard for either cancels.

    Args:
        differences: [K, documents], summed loss of each document under K changes, less that without.
        tokens: [documents], predicted tokens of each document.
        level: share of the resamples that lie inside.
        resamples: draws.
        seed: the same seed draws the same documents, for every change.

    Returns:
        [K, 2], lower and upper end, in nats a token.
    """
    documents = len(tokens)
    draw = np.random.default_rng(seed)
    counts = draw.multinomial(documents, np.full(documents, 1 / documents), size=resamples).astype(np.float64)
    means = differences @ counts.T / (counts @ tokens)  # [K, resamples]
    tail = (1 - level) / 2
    return np.quantile(means, [tail, 1 - tail], axis=1).T
