"""From text to token shards.

`num_workers` threads encode batches of fixed size, and their results come in the order of the documents: they do
not depend on the number of workers, and memory holds a few batches only.
"""

import hashlib
import json
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightning_dar.text.bad_text import BadText
from lightning_dar.text.manifest import SPLITS, describe_shard, read_json
from lightning_dar.text.pieces import Piece, read_pieces
from lightning_dar.text.sources import SourceFile
from lightning_dar.text.tokenizer import Tokenizer

SPLIT_RULE = "val where blake2b-64(text) / 2**64 < val_fraction, per document or piece of 2**16 characters"
_BATCH_CHARS = 2**20


class Encoded(NamedTuple):
    """The token ids of one batch and split."""

    ids: np.ndarray  # [tokens], uint16 where the vocabulary fits, int32 otherwise
    documents: int
    text_bytes: int


class _Assigned(NamedTuple):
    split: str
    text: str
    starts_document: bool
    ends_document: bool


def encode_units(
    units: Iterable[tuple[int, Iterable[Piece]]], tokenizer: Tokenizer, val_fraction: float, num_workers: int
) -> Iterator[tuple[int, dict[str, Encoded]]]:
    """Yields (unit, its next tokens by split); no batch crosses from one unit into the next."""
    batches = ((unit, batch) for unit, pieces in units for batch in _batches(_assign(pieces, val_fraction)))
    with ThreadPoolExecutor(num_workers) as pool:
        yield from _in_order(pool, lambda item: (item[0], _encode(tokenizer, item[1])), batches, ahead=2 * num_workers)


def encoded_text(
    files: Iterable[SourceFile], text_field: str, tokenizer: Tokenizer, bad: BadText
) -> Iterator[tuple[list[int], int]]:
    """Yields (ids, UTF-8 bytes of their text) piece by piece, as documents are prepared but for the splits."""
    starts = True
    for file in files:
        for piece in read_pieces(file, text_field, bad=bad):
            ids = tokenizer.document(tokenizer.encode(piece.text), starts, piece.ends_document)
            yield ids, len(piece.text.encode())
            starts = piece.ends_document


def split_of(text: str, val_fraction: float) -> str:
    """The split of a piece depends on its text alone: adding documents never moves another."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return "val" if int.from_bytes(digest, "big") / 2**64 < val_fraction else "train"


def token_dtype(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocab_size <= 2**16 else "int32"


def _assign(pieces: Iterable[Piece], val_fraction: float) -> Iterator[_Assigned]:
    """Gives every piece its split. A piece whose continuation goes to the other split ends there as well, and the
    continuation starts."""
    held: _Assigned | None = None
    for piece in pieces:
        split, starts = split_of(piece.text, val_fraction), True
        if held is not None:
            starts = held.ends_document or held.split != split
            yield held._replace(ends_document=starts)
        held = _Assigned(split, piece.text, starts, piece.ends_document)
    if held is not None:
        yield held


def _batches(parts: Iterable[_Assigned]) -> Iterator[list[_Assigned]]:
    batch, chars = [], 0
    for part in parts:
        batch.append(part)
        chars += len(part.text)
        if chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _encode(tokenizer: Tokenizer, batch: list[_Assigned]) -> dict[str, Encoded]:
    ids = {split: [] for split in SPLITS}
    documents, text_bytes = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
    for part, part_ids in zip(batch, tokenizer.encode_batch([part.text for part in batch]), strict=True):
        ids[part.split] += tokenizer.document(part_ids, part.starts_document, part.ends_document)
        text_bytes[part.split] += len(part.text.encode())
        documents[part.split] += part.ends_document
    dtype = token_dtype(tokenizer)
    return {split: Encoded(np.array(ids[split], dtype), documents[split], text_bytes[split]) for split in SPLITS}


def _in_order(pool: Executor, function: Callable, items: Iterable, ahead: int) -> Iterator:
    """`pool.map` that takes at most `ahead` items from the iterator before their results are used."""
    waiting = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:  # after an error or Ctrl-C, so that the pool closes at once
            future.cancel()


_CHUNK_BYTES = 64 * 2**20


class Shards:
    """Writes litdata chunks chunk-<unit>-<number>.bin, each unit's its own, and their index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writing: Path | None = None  # folder of the unit that is being written
        self._unit, self._items, self._cache = -1, 0, None
        self._index: dict[str, Any] = {"chunks": [], "config": None}
        self.documents = self.tokens = self.text_bytes = 0
        folder.mkdir(parents=True)

    def append(self, unit: int, part: Encoded) -> None:
        """Units come one after the other, each whole."""
        import torch

        if len(part.ids):
            if unit != self._unit or self._cache is None:
                self._finish_unit()
                self._start_unit(unit)
            self._cache[self._items] = torch.from_numpy(part.ids)
            self._items += 1
        self.documents += part.documents
        self.tokens += len(part.ids)
        self.text_bytes += part.text_bytes

    def close(self) -> dict[str, Any]:
        """Writes the index; returns the counts, and the size in bytes of every chunk."""
        self._finish_unit()
        write_index(self._folder, self._index)
        counts = {"documents": self.documents, "tokens": self.tokens, "text_bytes": self.text_bytes}
        chunks = {
            chunk["filename"]: describe_shard(self._folder / chunk["filename"]) for chunk in self._index["chunks"]
        }
        return {**counts, "chunks": chunks}

    def _start_unit(self, unit: int) -> None:
        from litdata.streaming import Cache
        from litdata.streaming.item_loader import TokensLoader

        self._unit, self._items = unit, 0
        self._writing = self._folder / "unit"
        self._cache = Cache(input_dir=str(self._writing), chunk_bytes=_CHUNK_BYTES, item_loader=TokensLoader())

    def _finish_unit(self) -> None:
        if self._cache is None:
            return
        self._cache.done()
        self._cache._merge_no_wait()  # merge() waits for other ranks, and preparation runs on one
        index = read_json(self._writing / "index.json")
        for number, chunk in enumerate(index["chunks"]):
            name = f"chunk-{self._unit}-{number}.bin"
            (self._writing / chunk["filename"]).rename(self._folder / name)
            self._index["chunks"].append({**chunk, "filename": name})
        self._index["config"] = index["config"]
        shutil.rmtree(self._writing)
        self._cache = None


def write_index(folder: Path, index: dict[str, Any]) -> None:
    """`index` as litdata has it: `chunks` and the `config` that they share."""
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True), encoding="utf-8")


def place_of(name: str) -> tuple[int, int]:
    """(unit, number in it) of a chunk file, the order of the chunks of a split."""
    unit, number = re.fullmatch(r"chunk-(\d+)-(\d+)\.bin", name).groups()
    return int(unit), int(number)
