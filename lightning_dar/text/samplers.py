"""Which windows a rank sees, in which order.

The samplers derive from DistributedSampler and SequentialSampler only so that Lightning leaves them in place when it
runs on several devices, and with `overfit_batches`. They ignore `set_epoch`: see `TrainSampler`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice, repeat

import numpy as np
from torch.utils.data import DistributedSampler, SequentialSampler

from lightning_dar.text.windows import PADDING

POOL = 65_536  # windows that are shuffled together; a remote folder is so read chunk after chunk


class TrainSampler(DistributedSampler, SequentialSampler):
    """Endless passes over the training windows, each in its own order.

    The order of a pass is a function of (seed, pass number) alone: pools of `POOL` neighbouring windows are
    shuffled, and the windows inside a pool. Rank r of R takes every R-th window of it, and a pass ends with
    its last optimizer step whose batches are full on every rank: so the windows of a step are the same, however
    ranks and accumulation share its batch.

    An iteration starts after the `consumed()` windows (over all ranks and passes) that were trained on,
    whatever workers have fetched ahead. So a resumed run continues with the very windows it has not seen, and
    the number that Lightning gives its epochs does not matter: resumed from the end of an epoch in a run that
    is limited by steps, it gives the next one to a single batch.
    `len` is one pass whatever the position, as Lightning counts the batches done before a resume itself.
    """

    def __init__(
        self,
        num_windows: int,
        batch_size: int,
        *,
        num_replicas: int = 1,
        rank: int = 0,
        seed: int = 0,
        accumulated: int = 1,
        consumed: Callable[[], int] = lambda: 0,
        overfit: int | float = 0,
    ) -> None:
        """`accumulated`: batches a step. `overfit`: as Lightning's `overfit_batches`, so many batches of the first pass
        (or that share of them) over and over; 0 for all passes."""
        super().__init__(range(num_windows), num_replicas=num_replicas, rank=rank, shuffle=False, seed=seed)
        self.num_windows = num_windows
        self.step_windows = batch_size * num_replicas * accumulated
        self.pass_windows = num_windows // self.step_windows * self.step_windows
        self.consumed = consumed
        batches = len(self) // batch_size
        repeated = int(batches * overfit) if isinstance(overfit, float) else min(batches, overfit)
        self._overfits = repeated > 0
        self._end = repeated * batch_size * num_replicas or self.pass_windows  # of a pass, in windows

    def __len__(self) -> int:
        return self.pass_windows // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        number, position = divmod(self.consumed(), self._end)
        numbers = repeat(0) if self._overfits else count(number)
        first = self._share(next(numbers), position)
        return islice(chain(first, chain.from_iterable(self._share(number) for number in numbers)), len(self))

    def _share(self, number: int, position: int = 0) -> Iterator[int]:
        """This rank's windows of pass `number`, from `position` (a multiple of the global batch) on."""
        for windows in self._ordered(number, position):
            yield from windows[(self.rank - position) % self.num_replicas :: self.num_replicas].tolist()
            position += len(windows)

    def _ordered(self, number: int, position: int) -> Iterator[np.ndarray]:
        """The windows of pass `number` for all ranks, from `position` to its end, some at a time."""
        return shuffled(self.num_windows, (self.seed, number), position, self._end)


def shuffled(num_windows: int, key: Sequence[int], position: int, end: int) -> Iterator[np.ndarray]:
    """The windows at [position, end) in the order of one pass, which `key` determines, some at a time."""
    start = 0  # of the pool, among the windows of the pass
    for pool in _permutation(key, size=-(-num_windows // POOL)):
        size = min(POOL, num_windows - pool * POOL)
        first, last = max(position - start, 0), min(size, end - start)
        if first < last:
            yield pool * POOL + _permutation((*key, pool), size)[first:last]
        start += size


def spread(num_windows: int, count: int) -> list[int]:
    """`count` of the windows, evenly spread, ascending."""
    return [index * num_windows // count for index in range(count)]


def _permutation(key: Sequence[int], size: int) -> np.ndarray:
    # RandomState and not Generator: its stream is frozen, so a resume survives an upgrade of numpy.
    return np.random.RandomState(key).permutation(size)


class ValidationSampler(DistributedSampler, SequentialSampler):
    """All windows in order, or `limit` of them evenly spread; rank r of R takes every R-th.

    Shares are padded with `PADDING` to the same length, so that ranks stay in step.
    """

    def __init__(self, num_windows: int, limit: int | None, *, num_replicas: int = 1, rank: int = 0) -> None:
        super().__init__(range(num_windows), num_replicas=num_replicas, rank=rank, shuffle=False)
        windows = self._chosen(num_windows, limit)
        windows += [PADDING] * (-len(windows) % num_replicas)
        self.share = windows[rank::num_replicas]

    def _chosen(self, num_windows: int, limit: int | None) -> list[int]:
        return spread(num_windows, min(num_windows, limit or num_windows))

    def __len__(self) -> int:
        return len(self.share)

    def __iter__(self) -> Iterator[int]:
        return iter(self.share)
