"""What a cell has come to, as the JSON file that outlives its run."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lightning_dar.errors import DataError
from lightning_dar.files import partial_of
from lightning_dar.text.manifest import read_json

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
