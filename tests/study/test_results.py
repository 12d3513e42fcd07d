"""The results that are checked in belong to the shipped studies, and come out again."""

from pathlib import Path

import pytest
import yaml

from lightning_dar.study.cells import Result, identity_of, read_result
from lightning_dar.study.matrix import StudyConfig, Variant, cells_of

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "docs/results").glob("*/cells/*/*.json"))


def study_of(path: Path) -> StudyConfig:
    """The shipped study whose output the result lies in."""
    content = yaml.safe_load((ROOT / "configs/study" / f"{path.parents[2].name}.yaml").read_text())
    variants = {name: Variant(**variant) for name, variant in content.pop("variants").items()}
    return StudyConfig(**content, variants=variants)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: "/".join(path.with_suffix("").parts[-4:]))
def test_a_result_has_the_settings_of_its_study(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = read_result(path)
    cells = {cell.name: cell for cell in cells_of(study_of(path))}
    assert result.name in cells
    settings = identity_of(cells[result.name], result.identity["data"])["settings"]
    assert result.identity["settings"] == settings


def seconds(result: Result) -> float:
    return result.measured.seconds if result.measured else float("inf")


@pytest.mark.slow
def test_the_shortest_cell_comes_out_again(tmp_path):
    """Bit for bit with the same packages, data and processor, else within half a percent. Takes some minutes."""
    import cli

    before = min(map(read_result, RESULTS), key=seconds)
    settings = before.identity["settings"]
    study = {
        "output": str(tmp_path / "out"),
        "settings": {**settings, "data": {**settings["data"], "dir": str(tmp_path / "data")}},
        "variants": {"again": {}},
        "seeds": [before.seed],
        "baseline": "again",
        "threads": before.identity["threads"],
    }
    config = tmp_path / "study.yaml"
    config.write_text(yaml.safe_dump(study))
    cli.main(["study", f"--config={config}"])
    again = read_result(tmp_path / f"out/cells/again/seed_{before.seed}.json")
    alike = again.measured.versions == before.measured.versions and again.identity["data"] == before.identity["data"]
    if alike:
        assert again.measured.unit_losses == before.measured.unit_losses
    assert again.measured.loss == (before.measured.loss if alike else pytest.approx(before.measured.loss, rel=0.005))
