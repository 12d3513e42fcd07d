"""The order of the windows of several sets.

litdata's CombinedStreamingDataset draws the set of every window anew and keeps its position in each worker's own
state: what a run sees then depends on the number of workers and ranks, and so does a resume. Here, as with a single
set, the order is a function of (seed, pass, position) alone.
"""

import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from lightning_dar.errors import UsageError
from lightning_dar.text.samplers import TrainSampler, ValidationSampler, shuffled, spread

BLOCK = 65_536  # windows in which every set has exactly its share: weights are kept to 1 / BLOCK
_LABELS = 0  # in the key of a random state, where a set has a hash of its name


class MixedTrainSampler(TrainSampler):
    """Endless draws from the sets: set j has `shares[j]` of any stretch of them, spread evenly but for a jitter.

    Every set goes through passes of its own, each window once a pass, whatever the others do: a small set comes round
    again while a large one is not through. What is called a pass here has as many windows as all sets together; after
    it the next one goes on with the draws, so it ends nothing but Lightning's epoch. As with one set, the last windows
    of a pass that do not fill a step are left out.
    """

    def __init__(self, lengths: Mapping[str, int], shares: Mapping[str, float], batch_size: int, **options) -> None:
        """`lengths` (windows, in the order of the dataset) and `shares` (adding up to 1) by set; `options` as of
        `TrainSampler`. Raises UsageError where a share is too small for a block to hold it."""
        super().__init__(sum(lengths.values()), batch_size, **options)
        self._lengths = list(lengths.values())
        self._starts = [sum(self._lengths[:number]) for number in range(len(lengths))]
        self._keys = [zlib.crc32(name.encode()) for name in lengths]
        self._quotas = apportion({name: shares[name] for name in lengths}, BLOCK)
        for name, quota in self._quotas.items():
            if quota == 0:
                raise UsageError(f"data.mix.{name}.weight: {shares[name]:.2g} of all; it must be at least 1/{BLOCK}")

    def _ordered(self, number: int, position: int) -> Iterator[np.ndarray]:
        first, end = (number * self.num_windows + draw for draw in (position, self._end))
        for block in range(first // BLOCK, -(-end // BLOCK)):
            start = block * BLOCK
            yield self._block(block)[max(first - start, 0) : end - start]

    def _block(self, block: int) -> np.ndarray:
        """The windows of draws [block * BLOCK, (block + 1) * BLOCK)."""
        labels = self._labels(block)
        windows = np.empty(BLOCK, np.int64)
        for number, quota in enumerate(self._quotas.values()):
            windows[labels == number] = self._starts[number] + self._draws(number, block * quota, quota)
        return windows

    def _labels(self, block: int) -> np.ndarray:
        """The set of every draw of a block: the i-th of a set's q draws lies at a random place of the i-th q-th."""
        random = np.random.RandomState([self.seed, _LABELS, block])
        places = [(np.arange(quota) + random.random_sample(quota)) / quota for quota in self._quotas.values()]
        labels = np.repeat(np.arange(len(places)), list(self._quotas.values()))
        return labels[np.argsort(np.concatenate(places), kind="stable")]

    def _draws(self, number: int, first: int, quota: int) -> np.ndarray:
        """Draws [first, first + quota) of a set, through as many of its own passes as that takes."""
        length, parts, missing = self._lengths[number], [], quota
        own_pass, position = divmod(first, length)
        while missing > 0:
            end = min(length, position + missing)
            parts += shuffled(length, (self.seed, self._keys[number], own_pass), position, end)
            own_pass, position, missing = own_pass + 1, 0, missing - (end - position)
        return np.concatenate(parts)


class MixedValidationSampler(ValidationSampler):
    """Windows of each set in proportion to its share, evenly spread and always the same: so the mean over tokens is
    the mean of the sets by weight. As many as the set that runs out first allows, or `limit`; one of each at least.
    """

    def __init__(self, lengths: Mapping[str, int], shares: Mapping[str, float], limit: int | None, **options) -> None:
        self._lengths = lengths
        enough = min(int(lengths[name] / share + 1e-6) for name, share in shares.items())
        counts = apportion(shares, max(1, min(enough, limit or enough)))
        self.counts = {name: min(max(1, counts[name]), lengths[name]) for name in lengths}
        super().__init__(sum(lengths.values()), limit, **options)

    def _chosen(self, num_windows: int, limit: int | None) -> list[int]:
        chosen, start = [], 0
        for name, length in self._lengths.items():
            chosen += [start + window for window in spread(length, self.counts[name])]
            start += length
        return chosen


def apportion(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Whole numbers that add up to `total`, as near to the shares as can be: by the largest remainder."""
    exact = {name: share * total for name, share in shares.items()}
    whole = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (whole[name] - exact[name], name))
    for name in by_remainder[: total - sum(whole.values())]:
        whole[name] += 1
    return whole
