"""What loaders leave to the process that trains."""

import gc
import sys

from torch.utils.data import DataLoader, Dataset, _utils

from lightning_dar.text.loading import leave_to_the_trainer


class Collects(Dataset):
    """How many objects fail while they are collected, in whatever process reads an item."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        failed = []
        sys.unraisablehook = failed.append
        gc.collect()
        return len(failed)


def test_a_worker_does_not_end_the_workers_of_an_earlier_epoch(monkeypatch):
    """Whose iterator, part of a cycle, is still to be collected when the worker is forked."""

    def loader() -> DataLoader:
        return DataLoader(Collects(), num_workers=1, persistent_workers=True, worker_init_fn=leave_to_the_trainer)

    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # seconds to wait for a worker's end, two times
    gc.collect()
    gc.disable()
    try:
        earlier = iter(loader())
        list(earlier)
        earlier.cycle = earlier
        del earlier
        assert [int(failed) for failed in loader()] == [0, 0]
    finally:
        gc.enable()
        gc.collect()
