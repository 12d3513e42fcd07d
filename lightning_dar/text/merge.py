"""Parts of a preparation -> the folder that one process would have written.

No token is copied: the chunks are moved, in the order of the units, and the manifest is written last. A merge that
was interrupted is taken up by the next.
"""

import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text.bad_text import left_out_in_words
from lightning_dar.text.encode import place_of, write_index
from lightning_dar.text.manifest import (
    PARTS,
    SPLITS,
    Request,
    check_left_out,
    open_folder,
    open_prepared,
    read_json,
    read_tokenizer,
)
from lightning_dar.text.pieces import Part
from lightning_dar.text.prepare import beside, check_not_empty, lock_path, locked, write_manifest


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
