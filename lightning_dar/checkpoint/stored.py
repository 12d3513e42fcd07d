"""Tensors as a checkpoint's files hold them: under the files' own names, read by the library of the format alone.

A conversion is checked against these, so that no reader of ours vouches for itself.
"""

import hashlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from lightning_dar.checkpoint.families import EMBEDDING, FREQUENCIES, HEAD
from lightning_dar.checkpoint.load import Checkpoint, WhichWeights, choose_weights
from lightning_dar.checkpoint.tensors import META_FILE, WEIGHTS_PREFIX, weight_files
from lightning_dar.errors import DataError

NEW_ROUTING = "residual."  # parameters of the residual strategy, in all forms that we write
ROUTING = re.compile(r"residual\.|_res_(proj|norm|alpha)\b|_null_source\b")  # and in the method authors' layout


def stored_tensors(path: Path, weights: WhichWeights | None = None) -> Iterator[tuple[str, Tensor]]:
    """Name and content of everything in the weights of a checkpoint that `open_checkpoint` accepts; of a file with two
    sets of them, in those that `weights` names."""
    if path.is_file():
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        yield from choose_weights(content, weights, path)[0].items()
    elif (path / META_FILE).exists():
        yield from _sharded(path)
    else:
        for file in weight_files(path)[0]:
            with safe_open(file, framework="pt", device="cpu") as opened:
                for name in opened.keys():  # noqa: SIM118  no dict
                    yield name, opened.get_tensor(name)


def compare_stored(source: Checkpoint, converted: Checkpoint, dtype: torch.dtype | None) -> str:
    """Compares what the files of the two hold, whatever the names: bit by bit, after the cast to `dtype`.

    Every tensor of the source must be in the result, and every one of the result in the source, except for a second
    copy of a tied embedding, rotary frequencies (compared when the source was opened), the parameters of a strategy
    that is new, and those of one that `standard` replaces.

    Returns:
        What was compared, in words.

    Raises:
        DataError: a tensor that only one of the two holds.
    """
    stored = _by_digest(source, converted, dtype)
    count = sum(map(len, stored.values()))
    new, foreign = [], []
    for name, tensor in stored_tensors(converted.path):
        if NEW_ROUTING in name and source.residual.name == "standard":
            new.append(name)
            continue
        parts = [_digest(tensor)]
        if NEW_ROUTING in name and parts[0] not in stored:
            parts = [_digest(row) for row in tensor]  # others store them site by site
        if not all(stored.get(part) for part in parts):
            foreign.append(name)
            continue
        for part in parts:
            stored[part].pop()
    lost = [name for names in stored.values() for name in names if not _is_replaced(name, source, converted)]
    problems = [*(f"{name} is not from the source" for name in foreign), *(f"{name} is lost" for name in lost)]
    if problems:
        raise DataError(f"verification failed: {'; '.join(problems)}")
    cast = "" if dtype is None else f", cast to {str(dtype).removeprefix('torch.')}"
    more = f", and {len(new)} new ones of {converted.residual.name}" if new else ""
    return (
        f"verified: the output holds all {count} tensors of the source's files, read by {_reader(source.path)}, "
        f"to the last bit{cast}{more}"
    )


def _reader(path: Path) -> str:
    if path.is_file():
        return "torch.load"
    return "torch.distributed.checkpoint" if (path / META_FILE).exists() else "safetensors"


def _by_digest(source: Checkpoint, converted: Checkpoint, dtype: torch.dtype | None) -> dict[bytes, list[str]]:
    """The names of the source's tensors by content, those that the result may lack first."""
    stored: dict[bytes, list[str]] = {}
    for name, tensor in stored_tensors(source.path, source.weights):
        names = stored.setdefault(_digest(tensor if dtype is None else tensor.to(dtype)), [])
        names.insert(0 if _is_replaced(name, source, converted) else len(names), name)
    for names in stored.values():
        if source.config.tie_embeddings and {HEAD, EMBEDDING} <= set(names):
            names.remove(HEAD)
    return stored


def _is_replaced(name: str, source: Checkpoint, converted: Checkpoint) -> bool:
    """Whether the result computes without a tensor of the source."""
    unrouted = source.residual.name != "standard" and converted.residual.name == "standard"
    return bool(FREQUENCIES.fullmatch(name) or (unrouted and ROUTING.search(name)))


def _digest(tensor: Tensor) -> bytes:
    return hashlib.blake2b(tensor.contiguous().flatten().view(torch.uint8).numpy()).digest()


def _sharded(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All weights of a sharded folder, loaded at once. Its index has been found to be plain data."""
    from torch.distributed import checkpoint as dcp

    reader = dcp.FileSystemReader(folder)
    entries = reader.read_metadata().state_dict_metadata
    weights = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if name.startswith(WEIGHTS_PREFIX)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is meant
        dcp.load(weights, storage_reader=reader, no_dist=True)
    for name, tensor in weights.items():
        yield name.removeprefix(WEIGHTS_PREFIX), tensor
