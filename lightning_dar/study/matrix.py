"""What a study is: settings that all cells share, what each variant changes, and the seeds.

    cells = variants x seeds

A cell is one `fit` run. Its seed is that of the initial weights and of the order of the data, so cells of one seed see
the same batches, and start from the same weights where they have the same parts.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lightning_dar.errors import UsageError
from lightning_dar.run.explain import packaged

RUN = "fit"
NOT_DONE = 75  # exit status of a run that was interrupted and goes on another time


@dataclass(frozen=True)
class CellFolder:
    """The files of a cell's run, whether it is there or to come.

    cell.yaml        its `fit` config: `python cli.py fit --config FOLDER/cell.yaml` is the same run
    identity.json    variant, seed and identity, as its result will have them
    progress.json    optimizer steps done and seconds spent
    fit.log          what its process prints
    fit/             the run: TensorBoard events, config.yaml, checkpoints/
    """

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "cell.yaml"

    @property
    def identity(self) -> Path:
        return self.path / "identity.json"

    @property
    def progress(self) -> Path:
        return self.path / "progress.json"

    @property
    def log(self) -> Path:
        return self.path / "fit.log"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def run(self) -> Path:
        return self.path / RUN

    @property
    def checkpoints(self) -> Path:
        return self.run / "checkpoints"

    def read_progress(self) -> tuple[int, float]:
        """(optimizer steps done, seconds spent); zeros where a run has not written any."""
        try:
            content = json.loads(self.progress.read_text(encoding="utf-8"))
            return content["step"], content["seconds"]
        except (OSError, ValueError, KeyError):
            return 0, 0.0

    def last_line(self) -> str:
        """What its process said last; the error where it ended by one."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ""
        said = [line.strip() for line in lines if line.strip()]
        errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
        return (errors or said or [""])[-1]


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")
LOGGER = "lightning.pytorch.loggers.TensorBoardLogger"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What one variant changes.

    Args:
        settings: as in a config of `fit`, nested or with dotted keys: {model.residual.name: delta-block}.
        seeds: seeds of this variant; default: the study's.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] | None = None


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """A study.

    Args:
        output: folder for results and runs.
        variants: variants by name; names are folder names.
        configs: configs of `fit` that all cells share, later ones override earlier ones.
        settings: settings that all cells share, over those configs.
        seeds: one cell for each variant and seed.
        baseline: the variant that others are compared with.
        threads: CPU threads of a cell. Results depend on it in their last bits.
        published: scale of `docs/paper_numbers.json` whose perplexities the report compares with.
        tolerance: relative difference in perplexity that counts as a match with the published one.
    """

    output: str
    variants: dict[str, Variant]
    configs: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    baseline: str = "standard"
    threads: int = 1
    published: str | None = None
    tolerance: float = 0.02


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a study.

    Attributes:
        settings: the whole config of its `fit` run, nested.
        folder: its run's files.
        result_path: where its result is written once it has ended.
    """

    variant: str
    seed: int
    settings: dict[str, Any]
    threads: int
    folder: CellFolder
    result_path: Path

    @property
    def name(self) -> str:
        return f"{self.variant}/seed_{self.seed}"

    @property
    def max_steps(self) -> int:
        return self.settings["trainer"]["max_steps"]


def cells_of(study: StudyConfig) -> list[Cell]:
    """All cells, seed by seed, so that a study cut short has whole comparisons.

    Raises:
        UsageError: a name that is no folder name, no such baseline, a seed given twice, no end of training, or a config
            that cannot be read.
    """
    _check(study)
    shared = merged(*(_read(packaged(path)) for path in study.configs), study.settings)
    seeds = {name: variant.seeds or study.seeds for name, variant in study.variants.items()}
    every = list(dict.fromkeys(seed for own in seeds.values() for seed in own))
    return [_cell(study, shared, name, seed) for seed in every for name in study.variants if seed in seeds[name]]


def merged(*settings: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings, later ones over earlier ones; dotted keys are nested first, lists are replaced whole."""
    result: dict[str, Any] = {}
    for part in settings:
        _merge(result, part)
    return result


def _check(study: StudyConfig) -> None:
    if not study.variants:
        raise UsageError("variants: none; give at least one")
    for name, variant in study.variants.items():
        if not NAME.fullmatch(name):
            raise UsageError(f"variants: {name!r} is no name of a folder; use letters, digits and . _ + = -")
        seeds = study.seeds if variant.seeds is None else variant.seeds
        if not seeds or len(set(seeds)) < len(seeds):
            raise UsageError(f"variants.{name}: seeds={seeds}; give at least one, each once")
    if study.baseline not in study.variants:
        raise UsageError(f"baseline={study.baseline}: no such variant; there are {', '.join(study.variants)}")
    if study.threads < 1:
        raise UsageError(f"threads={study.threads}: must be at least 1")


def _read(path: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"configs: {path} cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise UsageError(f"configs: {path} is no config of a run: it needs sections such as model, data, trainer")
    return content


def _cell(study: StudyConfig, shared: dict[str, Any], variant: str, seed: int) -> Cell:
    folder = Path(study.output) / "runs" / variant / f"seed_{seed}"
    own = {
        "seed_everything": seed,
        "data": {"seed": seed},
        "trainer": {
            "enable_progress_bar": False,
            "logger": {
                "class_path": LOGGER,
                "init_args": {"save_dir": str(folder), "name": "", "version": RUN, "default_hp_metric": False},
            },
        },
    }
    settings = merged(shared, study.variants[variant].settings, own)
    max_steps = settings["trainer"].get("max_steps")
    if not isinstance(max_steps, int) or max_steps < 1:
        raise UsageError(f"variants.{variant}: trainer.max_steps={max_steps}; a cell needs a number of steps")
    return Cell(
        variant=variant,
        seed=seed,
        settings=settings,
        threads=study.threads,
        folder=CellFolder(folder),
        result_path=Path(study.output) / "cells" / variant / f"seed_{seed}.json",
    )


def _merge(into: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        first, _, rest = key.partition(".")
        if rest:
            value = {rest: value}
        if isinstance(value, Mapping):
            if not isinstance(into.get(first), dict):
                into[first] = {}
            _merge(into[first], value)
        else:
            into[first] = value
