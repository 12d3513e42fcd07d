"""Sharded checkpoints: the folder that Lightning's ModelParallelStrategy (FSDP2) writes.

FOLDER/meta.pt        what a single file holds beside the weights
FOLDER/.metadata      which part of which tensor lies where (torch.distributed.checkpoint, pickled)
FOLDER/__0_0.distcp   one file a rank
"""

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightning_dar.checkpoint.safetensors_files import file_inside
from lightning_dar.checkpoint.tensors import TensorInfo, Tensors
from lightning_dar.errors import DataError

META_FILE = "meta.pt"
INDEX_FILE = ".metadata"
WEIGHTS_PREFIX = "state_dict."  # beside it lies the optimizer's state
_INDEX_CLASSES = {
    "torch": {"Size", "float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}


class ShardedTensors(Tensors):
    """The tensors whose names start with `prefix`, without it, each put together from its shards when read.

    Raises:
        DataError: an index that is damaged, or that asks for more than plain data; a part that is missing or cut.
    """

    def __init__(self, folder: Path, prefix: str):
        self._folder, self._prefix = folder, prefix
        self._index = _read_index(file_inside(folder, INDEX_FILE))
        _check_parts(folder, self._index)
        entries = self._index.state_dict_metadata
        self.infos = {
            name.removeprefix(prefix): TensorInfo(tuple(entry.size), entry.properties.dtype)
            for name, entry in entries.items()
            if name.startswith(prefix) and hasattr(entry, "size")
        }
        weights = (name for name in entries if name.startswith(WEIGHTS_PREFIX))
        self.others = [name for name in weights if name.removeprefix(prefix) not in self.infos]

    def read(self, name: str) -> Tensor:
        from torch.distributed import checkpoint as dcp

        class Reader(dcp.FileSystemReader):
            def read_metadata(reader, *_: Any, **__: Any) -> Any:
                return self._index

        info = self.infos[name]
        tensor = torch.empty(info.shape, dtype=info.dtype)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is meant
                dcp.load({self._prefix + name: tensor}, storage_reader=Reader(self._folder), no_dist=True)
        except dcp.CheckpointException as error:
            raise DataError(f"{self._folder}: '{name}' cannot be read ({error}); is the save finished?") from error
        return tensor


class _IndexUnpickler(pickle.Unpickler):
    """Pickle runs whatever it names; this one knows the index's own plain classes and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _INDEX_CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"asks for {module}.{name}")


def _read_index(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            index = _IndexUnpickler(file).load()
        index.storage_data, index.state_dict_metadata  # noqa: B018
    except Exception as error:  # unpickling damaged bytes raises anything
        raise DataError(f"{path}: no index of a sharded checkpoint, or a damaged one ({error})") from error
    return index


def _check_parts(folder: Path, index: Any) -> None:
    ends: dict[str, int] = {}
    for info in index.storage_data.values():
        ends[info.relative_path] = max(info.offset + info.length, ends.get(info.relative_path, 0))
    for name, end in ends.items():
        path = file_inside(folder, name)
        if (size := path.stat().st_size) < end:
            raise DataError(f"{path}: {size} bytes of at least {end}; is the save finished?")
