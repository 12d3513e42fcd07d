"""Means over documents, bootstrap intervals, rank correlation.

Own draws, as scipy.stats.bootstrap holds every resample of every change at once (10 times slower for 70 changes of 64
documents, gigabytes for thousands), and rank correlations need the same draws at all sites.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor


class SiteSums:
    """One vector of sums a site, as long as the site needs, in float64 where the device has it."""

    def __init__(self) -> None:
        self._by_site: dict[int, Tensor] = {}

    def add(self, site: int, sums: Tensor) -> None:
        """Adds `sums` [k] to those of `site`; stays on the device, so that no site waits for it."""
        self._by_site[site] = self._by_site[site] + sums if site in self._by_site else sums

    def reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Adds up the ranks, all sites in one exchange.

        Args:
            sum_over_ranks: maps a float64 tensor on the CPU to its sum over all of them.
        """
        if not self._by_site:
            return
        together = sum_over_ranks(torch.cat([sums for _, sums in self.items()]))
        lengths = [len(sums) for _, sums in self.items()]
        self._by_site = dict(zip(sorted(self._by_site), together.split(lengths), strict=True))

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """(site, sums [k] in float64 on the CPU), in the order of the sites."""
        return ((site, sums.cpu().double()) for site, sums in sorted(self._by_site.items()))


def in_double(values: Tensor) -> Tensor:
    """The values in float64; on mps, which has none, as they are."""
    return values if values.device.type == "mps" else values.double()


def counted(by_token: Tensor, tokens: Tensor | None) -> Tensor:
    """The rows of `by_token` [B * T, ...] that `tokens` (int64 [N]) names; all of them for None."""
    return by_token if tokens is None else by_token.index_select(0, tokens)


def target_documents(windows: Tensor, end_id: int, ends_before: Tensor) -> Tensor:
    """The document of each target, numbered 0, 1, ... in the order of the text.

    An end token belongs to the document that it ends, and a document may go on over several windows.

    Args:
        windows: int64 [N, T + 1], ids.
        end_id: the token that ends a document.
        ends_before: int64 [N], end tokens in the text before each window, windows left out included.

    Returns:
        int64 [N, T].
    """
    ends = (windows == end_id).long()
    documents = ends.cumsum(1) - ends + ends_before[:, None]
    return torch.unique(documents[:, 1:], return_inverse=True)[1]


def consecutive_ends(windows: Tensor, end_id: int) -> Tensor:
    """`ends_before` of windows that follow each other: int64 [N]."""
    ends = (windows == end_id).sum(1)
    return ends.cumsum(0) - ends


def units(documents: Tensor) -> tuple[Tensor, str]:
    """What the bootstrap draws, int64 [N, T], and its name: documents; windows where those are more and documents are
    too few for an interval."""
    count = int(documents.max()) + 1
    if count >= min(MIN_UNITS, len(documents)):
        return documents, "document"
    return torch.arange(len(documents))[:, None].expand_as(documents), "window"


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
