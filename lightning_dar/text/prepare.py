"""Preparing a source: text to token shards, whole or in parts that are merged.

A merge copies no token: the chunks are moved, in the order of the units, and the manifest is written last. One that was
interrupted is taken up by the next.
"""

import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text.bad_text import BadText, left_out_in_words
from lightning_dar.text.encode import SPLIT_RULE, Shards, encode_units, place_of, split_of, token_dtype, write_index
from lightning_dar.text.manifest import (
    FORMAT,
    PARTS,
    SPLITS,
    Request,
    check_left_out,
    describe_tokenizer,
    open_folder,
    open_prepared,
    read_json,
    read_tokenizer,
)
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


def merge(request: Request, directory: Path, count: int) -> dict[str, Any]:
    """Merges the `count` parts below `directory`, unless that is done; returns the manifest.

    Raises:
        UsageError: a count below 1.
        DataError: names the part that is missing, doubled, damaged, or of another source or other settings.
    """
    if count < 1:
        raise UsageError(f"--merge {count}: the number of parts is needed, at least 1")
    parts = [Part(number, count) for number in range(1, count + 1)]
    with locked(directory):
        if not (directory / "manifest.json").exists():
            _merge(request, directory, parts)
        manifest = open_prepared(directory, request)
        shutil.rmtree(directory / PARTS, ignore_errors=True)
        for part in parts:
            lock_path(beside(directory, part)).unlink(missing_ok=True)
    return manifest


def _merge(request: Request, directory: Path, parts: list[Part]) -> None:
    _check_names(directory / PARTS, parts)
    folders = [directory / PARTS / part.name for part in parts]
    plan = directory / PARTS / "merged.json"  # exists from the moment on when chunks may have been moved
    if not plan.exists():
        open_prepared(folders[0], request)  # the others are compared with it
        manifest = _add_up([_open_part(folder, part) for folder, part in zip(folders, parts, strict=True)])
        check_left_out(manifest, request)
        documents = {split: manifest[split]["documents"] for split in SPLITS}
        left_out = left_out_in_words(manifest["left_out"]) if manifest["left_out"] else ""
        check_not_empty(documents, request, manifest["files"], left_out and f"; {left_out}")
        if left_out:
            print(left_out, file=sys.stderr)
        write_manifest(plan.with_suffix(".partial"), manifest)
        os.replace(plan.with_suffix(".partial"), plan)
    manifest = read_json(plan)
    for split in SPLITS:
        _move_chunks([folder / split for folder in folders], directory / split, list(manifest[split]["chunks"]))
    read_tokenizer(folders[0], manifest).save(directory)
    os.replace(plan, directory / "manifest.json")


def _check_names(folder: Path, parts: list[Part]) -> None:
    there = {path.name for path in folder.glob("*") if re.fullmatch(r"\d+-of-\d+", path.name)}
    wanted = {part.name for part in parts}
    if missing := sorted(wanted - there):
        raise DataError(
            f"data.dir: {folder} lacks {len(missing)} of {len(parts)} parts: {', '.join(missing)}; "
            "prepare what is missing by --shard i/n"
        )
    if foreign := sorted(there - wanted):
        raise DataError(
            f"data.dir: {folder} holds {', '.join(foreign)}, not one of {len(parts)} parts; remove it, or merge those"
        )


def _open_part(folder: Path, part: Part) -> dict[str, Any]:
    manifest = open_folder(folder)
    says = manifest.get("part", {})
    if (says.get("number"), says.get("count")) != part:
        has = Part(says["number"], says["count"]).name if says else "no part"
        raise DataError(f"data.dir: {folder} holds {has}; lay every part under the name it was prepared by")
    return manifest


def _add_up(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """The manifest of the whole. Raises DataError where the parts are not of one preparation, or not all of it."""
    whole = {key: value for key, value in manifests[0].items() if key != "part"}
    for manifest in manifests:
        name = Part(manifest["part"]["number"], manifest["part"]["count"]).name
        for key in ("source_fingerprint", "files", "tokenizer", "token_dtype", "split"):
            if manifest[key] != whole[key]:
                raise DataError(
                    f"data.dir: part {name} was prepared with another {key.replace('_', ' ')} than the first "
                    f"({manifest[key]}, not {whole[key]}); remove it and prepare it anew"
                )
    units = sorted(unit for manifest in manifests for unit in manifest["part"]["units"])
    if any(units != list(range(manifest["part"]["units_in_all"])) for manifest in manifests):
        raise DataError(
            "data.dir: the parts do not make up the source: they were cut in another way; prepare them anew"
        )
    left_out = sum((Counter(manifest.get("left_out", {})) for manifest in manifests), Counter())
    whole["left_out"] = dict(sorted(left_out.items()))
    for split in SPLITS:
        counts = {
            key: sum(manifest[split][key] for manifest in manifests) for key in ("documents", "tokens", "text_bytes")
        }
        chunks = {name: shard for manifest in manifests for name, shard in manifest[split]["chunks"].items()}
        whole[split] = {**counts, "chunks": {name: chunks[name] for name in sorted(chunks, key=place_of)}}
    return whole


def _move_chunks(folders: list[Path], target: Path, names: list[str]) -> None:
    target.mkdir(exist_ok=True)
    indexes = [read_json(folder / "index.json") for folder in folders]
    for folder, index in zip(folders, indexes, strict=True):
        for chunk in index["chunks"]:
            if (folder / chunk["filename"]).exists():  # or an interrupted merge has moved it
                os.rename(folder / chunk["filename"], target / chunk["filename"])
    chunks = {chunk["filename"]: chunk for index in indexes for chunk in index["chunks"]}
    config = next(index["config"] for index in indexes if index["config"] is not None)
    write_index(target, {"chunks": [chunks[name] for name in names], "config": config})
