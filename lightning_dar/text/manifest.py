"""What a prepared folder says about itself, and the checks before it is used.

DIR/manifest.json     source fingerprint, tokenizer hash, counts, split rule, size of every shard
DIR/tokenizer.json    and what belongs to it: tokenizer_config.json, chat_template.jinja and the like
DIR/train/            litdata shards of token ids (TokensLoader): index.json, chunk-<unit>-<number>.bin
DIR/val/
DIR/parts/i-of-n/     until they are merged: such a folder each, with what its units are in the manifest
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_dar.errors import DataError
from lightning_dar.text.bad_text import OnBadText, left_out_in_words
from lightning_dar.text.sources import find_files, fingerprint
from lightning_dar.text.tokenizer import Tokenizer, boundaries_in_words, bpe_size, load_tokenizer

FORMAT = 1
HASHED_BYTES = 2**29  # the content of shards is checked at every start up to this size of a split, above it their sizes
SPLITS = ("train", "val")
PARTS = "parts"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the data options ask for; two equal requests on equal sources give the same shards."""

    source: tuple[str, ...]
    text_field: str
    tokenizer: str
    val_fraction: float
    bad_text: OnBadText = "skip"


def open_prepared(directory: Path, request: Request) -> dict[str, Any]:
    """The manifest of a folder that holds exactly what `request` asks for, its shards checked.

    Raises:
        DataError: no manifest, another source, tokenizer or split (each difference named), damaged shards.
    """
    manifest = open_folder(directory)
    differences = _differences(manifest, request)
    if differences:
        raise DataError(
            f"data.dir: {directory} holds other data. {'; '.join(differences)}. "
            "Choose another data.dir, or remove the folder to prepare it anew"
        )
    check_left_out(manifest, request)
    return manifest


def check_left_out(manifest: dict[str, Any], request: Request) -> None:
    """Raises DataError where documents were left out, or may have been, that the request refuses."""
    if request.bad_text == "skip":
        return
    if "left_out" not in manifest:
        raise DataError("data.bad_text: refuse is asked for, and the folder is of a version that did not look for it")
    if manifest["left_out"]:
        raise DataError(f"data.bad_text: refuse is asked for; the folder {left_out_in_words(manifest['left_out'])}")


def open_folder(directory: Path) -> dict[str, Any]:
    """The manifest of any prepared folder, its shards checked. Raises DataError, naming the file."""
    path = directory / "manifest.json"
    if not path.is_file():
        if (directory / PARTS).is_dir():
            raise DataError(
                f"data.dir: {directory} holds parts that are not merged yet; "
                "do it by `prepare --merge n`, the number of parts, when all are there"
            )
        raise DataError(
            f"data.dir: {directory} is not empty and has no manifest.json, so it was not prepared here; "
            "choose another data.dir, or remove the folder"
        )
    manifest = read_json(path)
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path}: format {manifest.get('format')}, this version reads format {FORMAT}")
    for split in SPLITS:
        _check_shards(directory / split, manifest[split])
    return manifest


def read_json(path: Path) -> dict[str, Any]:
    """Raises DataError, naming the file, where it is missing, not JSON, or not an object."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise DataError(f"{path}: damaged, not JSON ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: damaged, a JSON object is needed")
    return content


def describe_tokenizer(spec: str, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "spec": spec,
        "sha256": tokenizer.hash,
        "begin_ids": list(tokenizer.begin_ids),
        "closing_ids": list(tokenizer.closing_ids),
    }


def read_tokenizer(directory: Path, manifest: dict[str, Any]) -> Tokenizer:
    """The tokenizer the shards were made with. Raises DataError where it is not that one any more."""
    path = directory / "tokenizer.json"
    tokenizer = load_tokenizer(str(path))
    if tokenizer.hash != manifest["tokenizer"]["sha256"]:
        raise DataError(f"{path}: not the tokenizer that made these shards (its hash differs from manifest.json)")
    made = _identity_of(manifest)
    if made != tokenizer.identity:
        raise DataError(
            f"{directory}: its documents {boundaries_in_words(*made[1:])}, by its tokenizer's files they "
            f"{tokenizer.boundaries}, as prompts do; remove the folder to prepare it anew"
        )
    return tokenizer


def describe_shard(path: Path) -> dict[str, Any]:
    """What a shard must be later: its size in bytes and the hash of its content."""
    with path.open("rb") as shard:
        return {"bytes": path.stat().st_size, "blake2b": hashlib.file_digest(shard, hashlib.blake2b).hexdigest()}


def _check_shards(folder: Path, expected: dict[str, Any]) -> None:
    shards: dict[str, dict[str, Any]] = expected["chunks"]
    chunks = read_json(folder / "index.json").get("chunks")
    if not isinstance(chunks, list) or {chunk.get("filename") for chunk in chunks} != set(shards):
        raise DataError(f"{folder / 'index.json'}: damaged, its chunks are not those of manifest.json")
    if (tokens := sum(chunk["dim"] for chunk in chunks)) != expected["tokens"]:
        raise DataError(f"{folder / 'index.json'}: {tokens} tokens, manifest.json has {expected['tokens']}")
    remedy = "remove the folder to prepare it anew"
    hashed = sum(shard["bytes"] for shard in shards.values()) <= HASHED_BYTES
    for name, shard in shards.items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path}: shard missing; {remedy}")
        if (size := path.stat().st_size) != shard["bytes"]:
            raise DataError(f"{path}: shard has {size} bytes, not {shard['bytes']}; {remedy}")
        if hashed and describe_shard(path) != shard:
            raise DataError(f"{path}: shard damaged, its content is not what was prepared; {remedy}")


def _differences(manifest: dict[str, Any], request: Request) -> list[str]:
    has = {
        "data.source": (manifest["source_fingerprint"], ", ".join(manifest["source"])),
        "data.text_field": (manifest["text_field"],) * 2,
        "data.tokenizer": _tokenizer_identity(manifest["tokenizer"]["spec"], _identity_of(manifest)),
        "data.val_fraction": (manifest["split"]["val_fraction"],) * 2,
    }
    asked = {
        "data.source": (_fingerprint(manifest, request), ", ".join(request.source)),
        "data.text_field": (request.text_field,) * 2,
        "data.tokenizer": _tokenizer_identity(request.tokenizer),
        "data.val_fraction": (request.val_fraction,) * 2,
    }
    lines = []
    for option, (identity, shown) in has.items():
        asked_identity, asked_shown = asked[option]
        if identity != asked_identity:
            same_name = " (with other content)" if shown == asked_shown else ""
            lines.append(f"{option}: the folder has {shown}, asked for {asked_shown}{same_name}")
    return lines


def _fingerprint(manifest: dict[str, Any], request: Request) -> str:
    """The fingerprint of the text as it is now; where it is gone but named the same, the shards stand for it."""
    try:
        return fingerprint(find_files(request.source))
    except DataError:
        if manifest["source"] == list(request.source):
            return manifest["source_fingerprint"]
        raise


def _identity_of(manifest: dict[str, Any]) -> tuple:
    """The identity of the tokenizer that made the shards, see `Tokenizer.identity`; before there were `begin_ids`, it
    had none."""
    made = manifest["tokenizer"]
    return made["sha256"], tuple(made.get("begin_ids", ())), tuple(made.get("closing_ids", (manifest["end_id"],)))


def _tokenizer_identity(spec: str, identity: tuple | None = None) -> tuple[Any, str]:
    """(what must agree, what is shown): the spec of bytes and bpe:N, the identity of a tokenizer file."""
    if spec == "bytes" or bpe_size(spec) is not None:
        return spec, spec
    identity = identity or load_tokenizer(spec).identity
    return identity, f"{spec}, whose documents {boundaries_in_words(*identity[1:])}"
