"""Text -> a prepared folder, or one part of it."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_dar.errors import DataError
from lightning_dar.text.bad_text import BadText
from lightning_dar.text.encode import SPLIT_RULE, Shards, encode_units, split_of, token_dtype
from lightning_dar.text.manifest import FORMAT, PARTS, SPLITS, Request, describe_tokenizer, open_prepared
from lightning_dar.text.pieces import Part, Piece, Slice, deal_units, plan_units, read_pieces
from lightning_dar.text.sources import SourceFile, find_files, fingerprint
from lightning_dar.text.tokenizer import Tokenizer, bpe_size, load_tokenizer, train_bpe

_BPE_TEXT_CHARS = 2**29  # the tokenizer learns from at most this much, so that its memory stays bounded


def prepare(request: Request, directory: Path, num_workers: int, part: Part | None = None) -> dict[str, Any]:
    """Writes the folder that `manifest.py` describes, unless it is there; returns its manifest.

    With `part` only that part of it, below DIR/parts, to be merged later; it may run beside the other parts, on any
    machine. A folder appears under its name only when it is complete. A second process that wants the same folder
    waits for the first; what a killed one left behind is removed by the next.

    Raises:
        UsageError: more parts than the source can be cut into.
        DataError: from reading the source; an empty split; a folder that holds something else; a full disk.
    """
    target = directory
    if part is not None and _takes_parts(directory):
        target = directory / PARTS / part.name
    if _is_filled(target):
        return open_prepared(target, request)
    working = directory if part is None else beside(directory, part)
    with locked(working):
        if not _is_filled(target):
            partial = working.with_name(f".{working.name}.partial")  # hidden: nobody else's
            shutil.rmtree(partial, ignore_errors=True)
            try:
                _build(request, partial, num_workers, part)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(partial, target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return open_prepared(target, request)


def _is_filled(directory: Path) -> bool:
    return directory.exists() and (not directory.is_dir() or any(directory.iterdir()))


def _takes_parts(directory: Path) -> bool:
    """Whether there is nothing else in it, such as the whole."""
    return not _is_filled(directory) or (directory.is_dir() and os.listdir(directory) == [PARTS])


def beside(directory: Path, part: Part) -> Path:
    """What the work on a part is named by: a part that fails leaves nothing in `directory`."""
    return directory.with_name(f"{directory.name}.{part.name}")


def lock_path(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.lock")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Only one process at a time works on `directory`. Raises DataError where the file system refuses something."""
    from filelock import FileLock, Timeout

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock_path(directory).touch()  # fails where FileLock would wait for ever: a folder that cannot be written
        lock = FileLock(lock_path(directory))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"{directory}: another process prepares it, waiting", file=sys.stderr)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()
    except OSError as error:
        raise DataError(f"data.dir: cannot prepare {directory} ({error})") from error


def check_not_empty(documents: dict[str, int], request: Request, num_files: int, why: str) -> None:
    """Raises DataError where a split has no documents; `documents` by split, `why` where none were text."""
    if not any(documents.values()):
        raise DataError(f"data.source: no text in the {num_files} file(s) of {', '.join(request.source)}{why}")
    for split, option in (("train", "lower"), ("val", "raise")):
        if not documents[split]:
            raise DataError(
                f"data.val_fraction: {request.val_fraction} leaves the {split} split empty "
                f"({sum(documents.values())} documents in all); {option} it, or give more documents"
            )


def _build(request: Request, folder: Path, num_workers: int, part: Part | None) -> None:
    files = find_files(request.source)
    units = plan_units(files)
    chosen = list(range(len(units)))
    if part is not None:
        chosen = deal_units([sum(piece.stop - piece.start for piece in unit) for unit in units], part)
    tokenizer = _make_tokenizer(request, files)
    shards = {split: Shards(folder / split) for split in SPLITS}
    bad = BadText(request.bad_text)
    _encode(request, tokenizer, {number: units[number] for number in chosen}, shards, num_workers, bad)
    if part is None:
        documents = {split: shards[split].documents for split in SPLITS}
        check_not_empty(documents, request, len(files), bad.why_nothing_is_left())
    bad.report()
    manifest = {
        "format": FORMAT,
        "source": list(request.source),
        "text_field": request.text_field,
        "source_fingerprint": fingerprint(files),
        "files": len(files),
        "tokenizer": describe_tokenizer(request.tokenizer, tokenizer),
        "vocab_size": tokenizer.vocab_size,
        "end_id": tokenizer.end_id,
        "token_dtype": token_dtype(tokenizer),
        "split": {"val_fraction": request.val_fraction, "rule": SPLIT_RULE},
        "left_out": dict(sorted(bad.counts.items())),
        **{split: shards[split].close() for split in SPLITS},
    }
    if part is not None:
        manifest["part"] = {"number": part.number, "count": part.count, "units": chosen, "units_in_all": len(units)}
    tokenizer.save(folder)
    write_manifest(folder / "manifest.json", manifest)


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    path.write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _make_tokenizer(request: Request, files: list[SourceFile]) -> Tokenizer:
    vocab_size = bpe_size(request.tokenizer)
    if vocab_size is None:
        return load_tokenizer(request.tokenizer)
    slices = [Slice(file, 0, file.size) for file in files]
    with _progress(slices, "Learning the tokenizer") as bar:
        pieces = _read(slices, request.text_field, bar, BadText(request.bad_text))
        return train_bpe(vocab_size, _training_text(pieces, request.val_fraction))


def _training_text(pieces: Iterable[Piece], val_fraction: float) -> Iterator[str]:
    chars = 0
    for piece in pieces:
        if split_of(piece.text, val_fraction) == "train":
            yield piece.text
            chars += len(piece.text)
            if chars >= _BPE_TEXT_CHARS:
                return


def _encode(
    request: Request,
    tokenizer: Tokenizer,
    units: dict[int, list[Slice]],
    shards: dict[str, Shards],
    num_workers: int,
    bad: BadText,
) -> None:
    """Fills `shards`, and says how fast."""
    tokens, start = 0, time.perf_counter()
    with _progress([piece for unit in units.values() for piece in unit], "Encoding") as bar:
        pieces = ((number, _read(unit, request.text_field, bar, bad)) for number, unit in units.items())
        for number, by_split in encode_units(pieces, tokenizer, request.val_fraction, num_workers):
            for split, encoded in by_split.items():
                shards[split].append(number, encoded)
                tokens += len(encoded.ids)
            bar.set_postfix_str(f"{tokens / (time.perf_counter() - start):,.0f} tokens/s", refresh=False)
    seconds = time.perf_counter() - start
    print(f"{tokens:,} tokens in {seconds:.1f} s, {tokens / seconds:,.0f} tokens per second", file=sys.stderr)


def _progress(slices: Iterable[Slice], description: str) -> Any:
    from tqdm import tqdm

    total = sum(piece.stop - piece.start for piece in slices)
    return tqdm(total=total, unit="B", unit_scale=True, desc=description, mininterval=0.5)


def _read(slices: Iterable[Slice], text_field: str, bar: Any, bad: BadText) -> Iterator[Piece]:
    for file, start, stop in slices:
        before = bar.n
        for piece in read_pieces(file, text_field, start, stop, bad):
            bar.update(before + piece.position - start - bar.n)
            yield piece
        bar.update(before + stop - start - bar.n)
