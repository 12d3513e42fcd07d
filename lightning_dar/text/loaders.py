"""The loader of the training windows, and what its workers leave to the trainer."""

import gc
import signal
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


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
