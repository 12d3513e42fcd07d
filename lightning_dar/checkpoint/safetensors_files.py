"""Folders of safetensors files: reading those of others with care, and writing ours in shards."""

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lightning_dar.checkpoint.tensors import TensorInfo, Tensors
from lightning_dar.errors import DataError, UsageError

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
