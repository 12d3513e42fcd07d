"""Windows of tokens, and which of them a batch has: datasets, samplers and loaders, exact over resumes and ranks.

The samplers derive from DistributedSampler and SequentialSampler only so that Lightning leaves them in place when it
runs on several devices, and with `overfit_batches`. They ignore `set_epoch`: see `TrainSampler`.

litdata's CombinedStreamingDataset draws the set of every window anew and keeps its position in each worker's own
state: what a run sees then depends on the number of workers and ranks, and so does a resume. Here, as with a single
set, the order is a function of (seed, pass, position) alone.
"""

import gc
import os
import signal
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, SequentialSampler

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text.manifest import read_json

URL_SCHEMES = ("s3://", "gs://", "r2://", "azure://", "local:")
IGNORE_INDEX = -100  # target of a position that no loss or metric counts
PADDING = -1  # index of the window that pads a rank's share


def is_url(source: str) -> bool:
    """Raises UsageError for a URL that litdata cannot stream token shards from."""
    if "://" in source and not source.startswith(URL_SCHEMES):
        raise UsageError(
            f"data.source: {source}: token shards are read from {' '.join(URL_SCHEMES)} or a folder; a URL of text "
            "ends in .parquet, .jsonl.zst and the like, is a glob, or begins with hf://"
        )
    return source.startswith(URL_SCHEMES)


class Windows(Dataset):
    """Non-overlapping windows of `seq_len + 1` ids, in the order of the shards.

    Item i is int64 `[seq_len + 1]`; item `PADDING` is as long and all -1. The last tokens of each chunk that
    do not fill a window are left out. Folders are read by memory map, URLs through litdata's cache.

    Raises:
        DataError: the folder or URL cannot be opened, holds no token shards, or no whole window.
    """

    def __init__(self, folder: str, seq_len: int) -> None:
        self.folder = folder
        self.window = seq_len + 1
        self._pid, self._dataset = os.getpid(), self._open()
        index_path = Path(self._dataset.input_dir.path, "index.json")  # for a URL, its cached copy
        index = read_json(index_path)
        if index["config"].get("item_loader", "TokensLoader") != "TokensLoader":
            raise DataError(f"{folder}: litdata shards of another kind ({index['config']['item_loader']}), not tokens")
        tokens = [chunk["dim"] for chunk in index["chunks"]]
        self._length = sum(count // self.window for count in tokens)
        if self._length == 0:
            raise DataError(
                f"data.seq_len: {seq_len} needs windows of {self.window} tokens, and {folder} has "
                f"{sum(tokens)} tokens in {len(tokens)} shard(s); lower data.seq_len, or give more text"
            )

    def _open(self) -> Any:
        # Read by litdata when it is imported: without it every start asks the network for a newer version.
        os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")
        from litdata import StreamingDataset, TokensLoader

        # litdata copies every window out of the read-only map that torch warns about.
        warnings.filterwarnings("ignore", message="The given buffer is not writable", module="litdata")
        try:
            return StreamingDataset(self.folder, item_loader=TokensLoader(block_size=self.window))
        except Exception as error:  # each storage client raises its own kinds
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(f"data.source: cannot open the token shards of {self.folder} ({reason})") from error

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Tensor:
        if index == PADDING:
            return torch.full((self.window,), -1)
        if self._pid != os.getpid():  # a forked worker has no use for its parent's download thread
            self._pid, self._dataset = os.getpid(), self._open()
        return torch.as_tensor(self._dataset[index]).to(torch.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pid": None, "_dataset": None}


def collate(windows: Sequence[Tensor], *, document_end_id: int | None = None) -> dict[str, Tensor]:
    """Batches B windows of T+1 ids, int64 `[T+1]` each; negative ids are padding.

    Returns:
        `input_ids` int64 `[B, T]` (padding reads as id 0); `targets` int64 `[B, T]`, the next ids, `IGNORE_INDEX`
        where padded; with `document_end_id` also `document_ids` int64 `[B, T]`, the number of end tokens
        before a position: an end token belongs to the document that it ends.
    """
    ids = torch.stack(list(windows))
    batch = {
        "input_ids": ids[:, :-1].clamp(min=0),
        "targets": ids[:, 1:].masked_fill(ids[:, 1:] < 0, IGNORE_INDEX),
    }
    if document_end_id is not None:
        ends = (batch["input_ids"] == document_end_id).long()
        batch["document_ids"] = ends.cumsum(dim=1) - ends
    return batch


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


class TrainLoader(DataLoader):
    """A DataLoader whose iterations begin when their first batch is asked for.

    Lightning makes the iterator of the training batches as soon as anyone asks for the number of steps, which may be
    long before it restores how far training is; a DataLoader's workers would fetch from there at once. And where
    workers persist, a second iteration takes them away from the first, which begins anew where training then is.

    `state_dict` tells Lightning that resuming inside an epoch is exact; the position itself is kept by `TextData`.
    """

    begun = 0  # iterations

    def __iter__(self) -> Iterator[Any]:
        return _Iteration(self)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class _Iteration(Iterator[Any]):
    def __init__(self, loader: TrainLoader) -> None:
        self._loader, self._number = loader, 0
        self._batches: Iterator[Any] = iter(())

    def __next__(self) -> Any:
        if self._number == 0 or (self._loader.persistent_workers and self._number != self._loader.begun):
            self._loader.begun += 1
            self._number = self._loader.begun
            self._batches = DataLoader.__iter__(self._loader)
        return next(self._batches)


def leave_to_the_trainer(worker: int) -> None:
    """Some systems send a job's signals to all of its processes, and they would end a worker that is still needed. A
    second SIGTERM does: the trainer's own, to a worker that does not end by itself.

    A worker also collects none of the trainer's objects, of which it has copies: an iterator of an earlier epoch would
    try to end workers that are not its own."""
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(number, signal.SIG_DFL))
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    gc.freeze()
