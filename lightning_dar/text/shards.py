"""The writer of one split of a prepared folder."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from lightning_dar.text.encode import Encoded
from lightning_dar.text.manifest import describe_shard, read_json

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
