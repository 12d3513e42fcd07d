"""What must be equal for two cells to belong to one study: settings, data, code and threads."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_dar.errors import UsageError
from lightning_dar.study.matrix import Cell

PACKAGE = Path(__file__).parents[1]
# they run cells, draw, or come after a run
NO_PART_IN_TRAINING = ("charts", "convert", "evaluate", "generate.py", "study")
PLACES = ("logger",)  # settings of the trainer that only say where a run lies


def identity_of(cell: Cell, data: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a cell's result, in types that JSON has.

    Args:
        cell: the cell.
        data: what its data are, as `data_identity` says.
    """
    trainer = {key: value for key, value in cell.settings["trainer"].items() if key not in PLACES}
    return json.loads(
        json.dumps(
            {
                "settings": {**cell.settings, "trainer": trainer},
                "data": data,
                "code": code_hash(),
                "plugins": {name: _file_hash(name) for name in plugins_of(cell.settings)},
                "threads": cell.threads,
            }
        )
    )


def data_identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Prepares the data of a cell where they are missing, and names them by hashes of text and tokenizer.

    Args:
        settings: the section `data` of its config.

    Raises:
        UsageError, DataError: as `TextData` does.
    """
    from lightning_dar.text import TextData

    data = TextData(**settings)
    data.prepare_data()
    manifest = data.manifest
    if manifest is None:
        return {"folder": data.folder}
    return {
        "source": manifest["source_fingerprint"],
        "tokenizer": manifest["tokenizer"]["sha256"],
        "tokens": {split: manifest[split]["tokens"] for split in ("train", "val")},
    }


def refuse_to_mix(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UsageError where a cell that exists was made otherwise than it would be now; names what differs."""
    for key, was, would_be in _differences(before, now):
        if key == "code":
            was, would_be = "another lightning_dar", "this one"
        raise UsageError(
            f"{name}: made with other settings, data or code than this study asks for ({key} was {was}, is "
            f"{would_be}); go on from what made it, or give another output"
        )


def plugins_of(settings: Mapping[str, Any]) -> list[str]:
    plugins = settings.get("plugins") or []
    return [plugins] if isinstance(plugins, str) else list(plugins)


@cache
def code_hash() -> str:
    """SHA-256 over all Python files of this package that take part in a run."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        if inside.parts[0] not in NO_PART_IN_TRAINING:
            digest.update(inside.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _file_hash(module: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise UsageError(f"plugins: {module} is not found; it must lie where Python finds it")
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def _differences(before: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            yield from _differences(before.get(name), now.get(name), f"{key}.{name}" if key else name)
    elif before != now:
        yield key.removeprefix("settings."), before, now
