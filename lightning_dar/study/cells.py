"""A cell on disk: its folder, what identifies it, and its result."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from lightning_dar.errors import DataError, UsageError
from lightning_dar.files import partial_of
from lightning_dar.study.matrix import Cell
from lightning_dar.text.manifest import read_json

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


FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A logged scalar by optimizer step."""

    steps: list[int]
    values: list[float]


@dataclass(frozen=True, kw_only=True)
class SiteSharpness:
    """How sharply a site reads: the mean over tokens of its largest routing weight, beside 1/n."""

    site: int
    num_sources: int
    sharpness: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of a finished run, on all its validation windows.

    Attributes:
        loss: validation loss, in nats per token.
        unit: what `unit_losses` are summed over: document, or window where documents are too few.
        unit_losses: summed loss of each unit, in nats.
        unit_tokens: predicted tokens of each unit.
        parameters: all of them, and those of the residual.
        train_tokens: predicted tokens trained on.
        train_flops: floating-point operations of the model for them.
        tokens_per_second: median over the run.
        seconds: time in training and validation, over all its starts.
        sharpness: of each site that reads two or more sources; empty where nothing is routed.
        curves: logged scalars, thinned.
        versions: of what has a part in the digits.
    """

    loss: float
    bits_per_byte: float | None
    unit: str
    unit_losses: list[float]
    unit_tokens: list[int]
    parameters: int
    residual_parameters: int
    steps: int
    train_tokens: int
    train_flops: float
    tokens_per_second: float | None
    seconds: float
    sharpness: list[SiteSharpness]
    curves: dict[str, Curve]
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A cell that has ended: finished and measured, or failed with the reason in a line."""

    variant: str
    seed: int
    status: Literal["finished", "failed"]
    identity: dict[str, Any]
    error: str | None = None
    measured: Measured | None = None

    @property
    def name(self) -> str:
        return f"{self.variant}/seed_{self.seed}"

    def save(self, path: Path) -> None:
        """Writes the file whole, or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = partial_of(path)
        partial.write_text(json.dumps({"format": FORMAT, **asdict(self)}, allow_nan=False) + "\n", encoding="utf-8")
        partial.replace(path)


def read_result(path: Path) -> Result:
    """Raises DataError for a file that is no result of this version."""
    content = read_json(path)
    if content.pop("format", None) != FORMAT:
        raise DataError(f"{path}: no result of a cell, or one of another version")
    try:
        measured = content.pop("measured")
        if measured is not None:
            measured["sharpness"] = [SiteSharpness(**site) for site in measured["sharpness"]]
            measured["curves"] = {name: Curve(**curve) for name, curve in measured["curves"].items()}
            measured = Measured(**measured)
        return Result(**content, measured=measured)
    except (TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: damaged ({error})") from error
