"""Every shipped study parses, builds its variants' networks without weights, and is what its first lines say."""

import json
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from lightning_dar.study.command import make_parser
from lightning_dar.study.matrix import StudyConfig, cells_of
from lightning_dar.study.running import check_settings

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "configs/study").glob("*.yaml"))
NUMBERS = json.loads((ROOT / "docs/paper_numbers.json").read_text())["validation_perplexity"]


def read(path: Path) -> StudyConfig:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# python cli.py study --config ")
    args = shlex.split(first.removeprefix("# python cli.py study "))
    assert str(path.relative_to(ROOT)) in args, "the first line runs this very config"
    parser = make_parser()
    chosen = parser.instantiate_classes(parser.parse_args(args))
    return StudyConfig(**{field.name: chosen[field.name] for field in fields(StudyConfig)})


@pytest.mark.parametrize("path", STUDIES, ids=[path.stem for path in STUDIES])
def test_study(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    study = read(path)
    cells = cells_of(study)
    check_settings([cell for cell in cells if cell.settings["trainer"].get("accelerator") != "gpu"])
    assert len({(cell.variant, cell.seed) for cell in cells}) == len(cells)
    if study.published is not None:
        assert set(NUMBERS[study.published]) == set(study.variants), "one variant for each published number"


def test_published_numbers_are_the_papers_gains():
    """The abstract's range: 1.7 to 8.2% lower perplexity than standard, over all sizes."""
    gains = [1 - min(row["delta-block"], row.get("delta-sublayer", 1e9)) / row["standard"] for row in NUMBERS.values()]
    assert 100 * min(gains) == pytest.approx(1.9, abs=0.6)
    assert 100 * max(gains) == pytest.approx(8.2, abs=0.05)
