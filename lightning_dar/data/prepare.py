"""Documents -> train and validation shards.

One thread reads, `num_workers` threads encode batches of fixed size, and the shards are written in the order
of the documents: the result does not depend on the number of workers, and memory holds a few batches only.
"""

import hashlib
import json
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightning_dar.data.manifest import FORMAT, SPLITS, Request, describe_shard, open_prepared
from lightning_dar.data.sources import Piece, SourceFile, find_files, fingerprint, read_pieces
from lightning_dar.data.tokenizer import Tokenizer, bpe_size, load_tokenizer, train_bpe
from lightning_dar.errors import DataError

SPLIT_RULE = "val where blake2b-64(text) / 2**64 < val_fraction, per document or piece of 2**16 characters"
_BATCH_CHARS = 2**20
_CHUNK_BYTES = 64 * 2**20
_BPE_TEXT_CHARS = 2**29  # the tokenizer learns from at most this much, so that its memory stays bounded


class _Part(NamedTuple):
    split: str
    text: str
    ends_document: bool


class _Encoded(NamedTuple):
    ids: np.ndarray  # [tokens], uint16 where the vocabulary fits, int32 otherwise
    documents: int
    text_bytes: int


def prepare(request: Request, directory: Path, num_workers: int) -> dict[str, Any]:
    """Writes the folder that `manifest.py` describes, unless it is there; returns its manifest.

    The folder appears under its name only when it is complete. A second process that wants the same folder
    waits for the first; what a killed one left behind is removed by the next.

    Raises:
        DataError: from reading the source; an empty split; a folder that holds something else; a full disk.
    """
    if _is_filled(directory):
        return open_prepared(directory, request)
    from filelock import FileLock, Timeout

    partial = directory.with_name(f"{directory.name}.partial")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock_path = directory.with_name(f".{directory.name}.lock")
        lock_path.touch()  # fails where FileLock would wait for ever: a folder that cannot be written
        lock = FileLock(lock_path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"{directory}: another process prepares it, waiting", file=sys.stderr)
            lock.acquire()
        try:
            if not _is_filled(directory):
                shutil.rmtree(partial, ignore_errors=True)
                _build(request, partial, num_workers)
                os.rename(partial, directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            lock.release()
    except OSError as error:
        raise DataError(f"data.dir: cannot prepare {directory} ({error})") from error
    return open_prepared(directory, request)


def split_of(text: str, val_fraction: float) -> str:
    """The split of a piece depends on its text alone: adding documents never moves another."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return "val" if int.from_bytes(digest, "big") / 2**64 < val_fraction else "train"


def _is_filled(directory: Path) -> bool:
    return directory.exists() and (not directory.is_dir() or any(directory.iterdir()))


def _build(request: Request, folder: Path, num_workers: int) -> None:
    files = find_files(request.source)
    tokenizer = _make_tokenizer(request, files)
    shards = {split: _Shards(folder / split) for split in SPLITS}
    pieces = _read_all(files, request.text_field, description="Encoding")
    batches = _batches(_assign(pieces, request.val_fraction))
    with ThreadPoolExecutor(num_workers) as pool:
        encoded = _in_order(pool, lambda batch: _encode(tokenizer, batch), batches, ahead=2 * num_workers)
        for by_split in encoded:
            for split, part in by_split.items():
                shards[split].append(part)
    _check_not_empty(shards, request, len(files))
    manifest = {
        "format": FORMAT,
        "source": list(request.source),
        "text_field": request.text_field,
        "source_fingerprint": fingerprint(files),
        "files": len(files),
        "tokenizer": {"spec": request.tokenizer, "sha256": tokenizer.hash},
        "vocab_size": tokenizer.vocab_size,
        "end_id": tokenizer.end_id,
        "token_dtype": _token_dtype(tokenizer),
        "split": {"val_fraction": request.val_fraction, "rule": SPLIT_RULE},
        **{split: shards[split].close() for split in SPLITS},
    }
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _make_tokenizer(request: Request, files: list[SourceFile]) -> Tokenizer:
    vocab_size = bpe_size(request.tokenizer)
    if vocab_size is None:
        return load_tokenizer(request.tokenizer)
    pieces = _read_all(files, request.text_field, description="Learning the tokenizer")
    return train_bpe(vocab_size, _training_text(pieces, request.val_fraction))


def _training_text(pieces: Iterable[Piece], val_fraction: float) -> Iterator[str]:
    chars = 0
    for piece in pieces:
        if split_of(piece.text, val_fraction) == "train":
            yield piece.text
            chars += len(piece.text)
            if chars >= _BPE_TEXT_CHARS:
                return


def _read_all(files: list[SourceFile], text_field: str, description: str) -> Iterator[Piece]:
    from tqdm import tqdm

    total = sum(file.size for file in files)
    with tqdm(total=total, unit="B", unit_scale=True, desc=description, mininterval=0.5) as bar:
        for file in files:
            start = bar.n
            for piece in read_pieces(file, text_field):
                bar.update(start + piece.position - bar.n)
                yield piece
            bar.update(start + file.size - bar.n)


def _assign(pieces: Iterable[Piece], val_fraction: float) -> Iterator[_Part]:
    """Gives every piece its split. A piece whose continuation goes to the other split ends there as well."""
    held: _Part | None = None
    for piece in pieces:
        split = split_of(piece.text, val_fraction)
        if held is not None:
            yield held._replace(ends_document=held.ends_document or held.split != split)
        held = _Part(split, piece.text, piece.ends_document)
    if held is not None:
        yield held


def _batches(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    batch, chars = [], 0
    for part in parts:
        batch.append(part)
        chars += len(part.text)
        if chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _encode(tokenizer: Tokenizer, batch: list[_Part]) -> dict[str, _Encoded]:
    ids = {split: [] for split in SPLITS}
    documents, text_bytes = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
    for part, part_ids in zip(batch, tokenizer.encode_batch([part.text for part in batch]), strict=True):
        ids[part.split] += part_ids
        text_bytes[part.split] += len(part.text.encode())
        if part.ends_document:
            ids[part.split].append(tokenizer.end_id)
            documents[part.split] += 1
    dtype = _token_dtype(tokenizer)
    return {split: _Encoded(np.array(ids[split], dtype), documents[split], text_bytes[split]) for split in SPLITS}


def _token_dtype(tokenizer: Tokenizer) -> str:
    return "uint16" if tokenizer.vocab_size <= 2**16 else "int32"


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


def _check_not_empty(shards: dict[str, "_Shards"], request: Request, num_files: int) -> None:
    documents = {split: shards[split].documents for split in SPLITS}
    if not any(documents.values()):
        raise DataError(f"data.source: no text in the {num_files} file(s) of {', '.join(request.source)}")
    for split, option in (("train", "lower"), ("val", "raise")):
        if not documents[split]:
            raise DataError(
                f"data.val_fraction: {request.val_fraction} leaves the {split} split empty "
                f"({sum(documents.values())} documents in all); {option} it, or give more documents"
            )


class _Shards:
    """Writes one split as litdata chunks."""

    def __init__(self, folder: Path) -> None:
        from litdata.streaming import Cache
        from litdata.streaming.item_loader import TokensLoader

        self._folder = folder
        self._cache = Cache(input_dir=str(folder), chunk_bytes=_CHUNK_BYTES, item_loader=TokensLoader())
        self._items = 0
        self.documents = self.tokens = self.text_bytes = 0

    def append(self, part: _Encoded) -> None:
        import torch

        if len(part.ids):
            self._cache[self._items] = torch.from_numpy(part.ids)
            self._items += 1
        self.documents += part.documents
        self.tokens += len(part.ids)
        self.text_bytes += part.text_bytes

    def close(self) -> dict[str, Any]:
        """Writes the index; returns the counts, and the size in bytes of every chunk."""
        self._cache.done()
        self._cache._merge_no_wait()  # merge() waits for other ranks, and preparation runs on one
        chunks = {path.name: describe_shard(path) for path in sorted(self._folder.glob("chunk-*.bin"))}
        counts = {"documents": self.documents, "tokens": self.tokens, "text_bytes": self.text_bytes}
        return {**counts, "chunks": chunks}
