"""Reading safetensors files of others with care, and writing them without holding more than a piece in memory."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lightning_dar.checkpoint.tensors import PIECE_BYTES, TensorInfo, Tensors
from lightning_dar.errors import DataError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED = (".bin", ".pt", ".pth", ".pkl")
CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
DTYPES = {code: dtype for dtype, code in CODES.items()}


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
    """The weights of a folder: `model.safetensors`, the shards that an index names, or whatever shards there are.

    The safetensors library checks each header against its file: offsets, sizes, gaps. The bytes are then read, not
    mapped: the pages of a mapped file would count as memory of ours.

    Raises:
        DataError: no safetensors (pickled weights are refused), files outside the folder, damaged headers, a name
            twice, an index that does not fit its files, weights that are not plain floats.
    """

    def __init__(self, folder: Path):
        self.infos: dict[str, TensorInfo] = {}
        self._place: dict[str, tuple[Path, int]] = {}  # file, and offset in it
        names, promised = _files_of(folder)
        for file_name in names:
            self._add(file_inside(folder, file_name))
        wrong = sorted(name for name, file in promised.items() if name not in self._place or self._file(name) != file)
        if wrong:
            raise DataError(f"{folder / INDEX}: names tensors that its files do not hold: {', '.join(wrong)}")

    def read(self, name: str) -> Tensor:
        info = self.infos[name]
        return self._bytes(name, 0, info.num_bytes).view(info.dtype).view(info.shape)

    def pieces(self, name: str) -> Iterator[Tensor]:
        info = self.infos[name]
        if info.num_bytes <= PIECE_BYTES or len(info.shape) < 2:
            yield self.read(name)
            return
        row_bytes = info.num_bytes // info.shape[0]
        step = max(1, PIECE_BYTES // row_bytes) * row_bytes
        for start in range(0, info.num_bytes, step):
            data = self._bytes(name, start, min(start + step, info.num_bytes))
            yield data.view(info.dtype).view(-1, *info.shape[1:])

    def _bytes(self, name: str, start: int, end: int) -> Tensor:
        path, offset = self._place[name]
        data = torch.empty(end - start, dtype=torch.uint8)
        with path.open("rb", buffering=0) as file:
            file.seek(offset + start)
            view = memoryview(data.numpy())
            while view:
                count = file.readinto(view)
                if not count:
                    raise DataError(f"{path}: became shorter while it was read")
                view = view[count:]
        return data

    def _file(self, name: str) -> str:
        return self._place[name][0].name

    def _add(self, path: Path) -> None:
        for name, (dtype, shape, offset) in _read_header(path).items():
            if name in self._place:
                raise DataError(f"{path}: tensor '{name}' is also in {self._file(name)}")
            if dtype not in DTYPES:
                raise DataError(
                    f"{path}: tensor '{name}' is {dtype}: quantised or integer weights cannot be converted; "
                    "use the checkpoint in float32, bfloat16 or float16"
                )
            self._place[name] = path, offset
            self.infos[name] = TensorInfo(tuple(shape), DTYPES[dtype])


def _read_header(path: Path) -> dict[str, tuple[str, list[int], int]]:
    """name -> (dtype code, shape, offset in the file), of a file that the safetensors library finds sound."""
    try:
        with safe_open(path, framework="pt", device="cpu"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path}: no safetensors file, or a damaged one ({error}); fetch it again") from error
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"], 8 + length + entry["data_offsets"][0]) for name, entry in header.items()
    }


def _files_of(folder: Path) -> tuple[list[str], dict[str, str]]:
    """File names of the weights, and which tensor an index promises in which file."""
    if (folder / INDEX).exists():
        weight_map = read_json_object(file_inside(folder, INDEX)).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise DataError(f"{folder / INDEX}: no weight_map from tensor to file name")
        return sorted(set(weight_map.values())), weight_map
    if (folder / SINGLE).exists():
        return [SINGLE], {}
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if found:
        return found, {}
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        raise DataError(
            f"{folder}: only pickled weights ({', '.join(pickled)}), which could run code when opened; "
            "save the model as safetensors"
        )
    raise DataError(f"{folder}: no *.safetensors; give a folder that holds the model's weights")


def write_safetensors(path: Path, source: Tensors, dtypes: Mapping[str, torch.dtype], progress: Any = None) -> None:
    """Writes the named tensors in their order, cast to the given dtypes, piece by piece.

    Args:
        path: the new file.
        source: where they are read.
        dtypes: name -> dtype, of all tensors to write.
        progress: called with the bytes written by each piece.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype in dtypes.items():
        shape = source.infos[name].shape
        start, end = end, end + TensorInfo(shape, dtype).num_bytes
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, dtype in dtypes.items():
            for piece in source.pieces(name):
                data = piece.to(dtype).contiguous().view(-1).view(torch.uint8).numpy()
                file.write(data.data)
                if progress is not None:
                    progress(data.nbytes)
