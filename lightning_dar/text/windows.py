"""One split of a token folder as windows of T+1 ids, and the batches made of them."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

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
