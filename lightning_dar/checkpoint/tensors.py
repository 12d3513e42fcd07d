"""Tensors of a checkpoint, read one by one: in memory, from safetensors files, from a sharded folder.

FOLDER/meta.pt        what a single file holds beside the weights
FOLDER/.metadata      which part of which tensor lies where (torch.distributed.checkpoint, pickled)
FOLDER/__0_0.distcp   one file a rank
"""

import json
import os
import pickle
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lightning_dar.errors import DataError, UsageError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class TensorInfo(NamedTuple):
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Tensors:
    """Base class. `infos` has every name, `others` the names of what lies beside them in the same files; nothing else
    is held in memory."""

    infos: Mapping[str, TensorInfo]
    others: Sequence[str] = ()

    def read(self, name: str) -> Tensor:
        """The tensor, on the CPU, perhaps mapped from its file: to be copied before it is kept or changed.

        Raises:
            DataError: the file turns out damaged.
        """
        raise NotImplementedError


class InMemory(Tensors):
    """Tensors of a dict: those of a memory-mapped file, or freshly made ones."""

    def __init__(self, entries: Mapping[str, Any]):
        self._tensors = {name: entry for name, entry in entries.items() if isinstance(entry, Tensor)}
        self.infos = {name: TensorInfo(tuple(tensor.shape), tensor.dtype) for name, tensor in self._tensors.items()}
        self.others = [name for name in entries if name not in self._tensors]

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


class Joined(Tensors):
    """Several collections as one; of a name that two have, the first counts."""

    def __init__(self, *parts: Tensors):
        self._owner = {name: part for part in reversed(parts) for name in part.infos}
        self.infos = {name: part.infos[name] for name, part in self._owner.items()}

    def read(self, name: str) -> Tensor:
        return self._owner[name].read(name)


class Translated(Tensors):
    """Tensors under other names."""

    def __init__(self, tensors: Tensors, translate: Callable[[str], str]):
        self._tensors = tensors
        self._original = {translate(name): name for name in tensors.infos}
        self.others = [name for name in tensors.infos if self._original[translate(name)] != name]  # twice
        self.infos = {name: tensors.infos[original] for name, original in self._original.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors.read(self._original[name])


class Unprefixed(Tensors):
    """The tensors whose names start with the prefix, under what follows it."""

    def __init__(self, tensors: Tensors, prefix: str):
        self._tensors, self._prefix = tensors, prefix
        self.infos = {
            name.removeprefix(prefix): info for name, info in tensors.infos.items() if name.startswith(prefix)
        }
        self.others = [*(name for name in tensors.infos if not name.startswith(prefix)), *tensors.others]

    def read(self, name: str) -> Tensor:
        return self._tensors.read(f"{self._prefix}{name}")


INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PATTERN = "model{suffix}.safetensors"
PICKLED = (".bin", ".pt", ".pth", ".pkl")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def file_inside(folder: Path, name: str) -> Path:
    """The file `name` of the folder. Raises DataError where it is missing, or lies elsewhere (`../x`, a link out)."""
    path = folder / name
    if Path(name).name != name or not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(
            f"{folder}: '{name}' lies outside the folder; copy the model into one folder (cp -rL follows links)"
        )
    if not path.is_file():
        raise DataError(f"{path}: missing; complete the folder")
    return path


def read_json_object(path: Path, limit: int = 256 * 2**20) -> dict[str, Any]:
    """Raises DataError, naming the file, where it is not a JSON object of sensible size."""
    try:
        if path.stat().st_size > limit:
            raise DataError(f"{path}: larger than {limit >> 20} MiB, so not the file it should be")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: a JSON object is needed")
    return content


class SafetensorsFiles(Tensors):
    """The weights of a folder. The safetensors library checks each header against its file: offsets, sizes, gaps.

    Raises:
        DataError: no safetensors (pickled weights are refused), files outside the folder, damaged headers, a name
            twice, an index that does not fit its files, weights that are not plain floats.
    """

    def __init__(self, folder: Path):
        self.infos: dict[str, TensorInfo] = {}
        self._file: dict[str, Path] = {}
        files, promised = weight_files(folder)
        for file in files:
            self._add(file)
        if promised is not None:
            _check_index(folder / INDEX, promised, {name: file.name for name, file in self._file.items()})

    def read(self, name: str) -> Tensor:
        with _opened(self._file[name]) as file:
            return file.get_tensor(name)

    def _add(self, path: Path) -> None:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118  no dict
                if name in self._file:
                    raise DataError(f"{path}: tensor '{name}' is also in {self._file[name].name}")
                entry = file.get_slice(name)
                shape, dtype = entry.get_shape(), entry.get_dtype()
                if dtype not in DTYPES:
                    raise DataError(
                        f"{path}: tensor '{name}' is {dtype}: quantised or integer weights cannot be converted; "
                        "use the checkpoint in float32, bfloat16 or float16"
                    )
                self._file[name] = path
                self.infos[name] = TensorInfo(tuple(shape), DTYPES[dtype])


def weight_files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The files that hold a folder's weights, and what an index promises: tensor -> file name.

    As in transformers, `model.safetensors` counts where it is there, else what the index names; else whatever
    safetensors there are.
    """
    if (folder / SINGLE).exists():
        return [file_inside(folder, SINGLE)], None
    if (folder / INDEX).exists():
        weight_map = read_json_object(file_inside(folder, INDEX)).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise DataError(f"{folder / INDEX}: no weight_map from tensor to file name")
        return [file_inside(folder, name) for name in sorted(set(weight_map.values()))], weight_map
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if found:
        return [file_inside(folder, name) for name in found], None
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        raise DataError(
            f"{folder}: only pickled weights ({', '.join(pickled)}), which could run code when opened; "
            "save the model as safetensors"
        )
    raise DataError(f"{folder}: no *.safetensors; give a folder that holds the model's weights")


def shard_bytes(max_shard_size: str) -> int:
    """Bytes of a size such as 5GB. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]B)", max_shard_size.strip().upper())
    size = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if size < 1:
        raise UsageError(f"--max_shard_size={max_shard_size}: give a size such as 5GB or 500MB")
    return size


def write_safetensors(
    folder: Path,
    source: Tensors,
    dtypes: Mapping[str, torch.dtype],
    max_shard_bytes: int,
    progress: Callable[[int], Any] = lambda num_bytes: None,
) -> None:
    """Writes tensors as `save_pretrained` of transformers does: into one file, or into shards and an index over them.

    One shard at a time is in memory; a tensor larger than a shard is a shard of its own.

    Args:
        folder: where the files go.
        source: where the tensors are read.
        dtypes: name -> dtype, of all tensors to write.
        max_shard_bytes: of the tensors in one file.
        progress: called with the bytes of each tensor that is ready to be written.
    """
    infos = {name: TensorInfo(source.infos[name].shape, dtype) for name, dtype in dtypes.items()}
    split = split_state_dict_into_shards_factory(
        infos, get_storage_size=lambda info: info.num_bytes, filename_pattern=PATTERN, max_shard_size=max_shard_bytes
    )
    for file_name, names in split.filename_to_tensors.items():
        shard = {}
        for name in names:
            shard[name] = source.read(name).to(dtypes[name], copy=True).contiguous()  # not mapped any more
            progress(infos[name].num_bytes)
        _save(folder / file_name, shard)
    if split.is_sharded:
        parameters = sum(torch.Size(info.shape).numel() for info in infos.values())
        index = {"metadata": {"total_parameters": parameters, **split.metadata}, "weight_map": split.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path}: no safetensors file, or a damaged one ({error}); fetch it again") from error


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    path.chmod(path.parent.stat().st_mode & 0o666)  # the library's files are their owner's alone


def _check_index(path: Path, promised: Mapping[str, str], held: Mapping[str, str]) -> None:
    absent = sorted(name for name, file in promised.items() if held.get(name) != file)
    if absent:
        raise DataError(f"{path}: names tensors that its files do not hold: {', '.join(absent)}")
    unnamed = sorted(f"{name} in {file}" for name, file in held.items() if name not in promised)
    if unnamed:
        raise DataError(f"{path}: does not name all tensors of its files: {', '.join(unnamed)}")


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
