"""Writes what came out of a study: results.json, table.md, report.html, and a CSV and a PNG of each chart."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lightning_dar.charts import page
from lightning_dar.errors import UsageError
from lightning_dar.study.charts import sections_of
from lightning_dar.study.identity import refuse_to_mix
from lightning_dar.study.matrix import Cell, StudyConfig
from lightning_dar.study.result import Result, read_result
from lightning_dar.study.summary import Summary, summarise
from lightning_dar.study.words import counted_failures, failures, lead, markdown_table
from lightning_dar.text.manifest import read_json

PAPER_NUMBERS = Path("docs/paper_numbers.json")


def write_report(study: StudyConfig, cells: Sequence[Cell]) -> Summary:
    """Writes the report of all cells that have ended into the study's folder.

    Raises:
        UsageError: no cell has ended, or cells of other data, code or threads than the others.
        DataError: a damaged result.
    """
    results = [read_result(cell.result_path) for cell in cells if cell.result_path.exists()]
    if not results:
        raise UsageError(f"output={study.output}: no cell of the study has ended yet; run it without --report first")
    _refuse_mixture(results)
    summary = summarise(
        results, list(study.variants), study.baseline, len(cells), _published(study.published), study.tolerance
    )
    output, content = Path(study.output), asdict(summary)
    (output / "results.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    text = markdown_table(summary) + counted_failures(failures(summary))
    (output / "table.md").write_text(text, encoding="utf-8")
    page.write_report(output, f"Study: {output.name}", lead(summary), sections_of(summary), content)
    return summary


def _refuse_mixture(results: Sequence[Result]) -> None:
    """Settings differ between variants by design, and data between those that change them; code and threads never."""
    first = results[0]
    for result in results[1:]:
        shared = [{key: each.identity[key] for key in ("code", "threads")} for each in (first, result)]
        refuse_to_mix(result.name, *shared)


def _published(scale: str | None) -> dict[str, float] | None:
    if scale is None:
        return None
    numbers = read_json(PAPER_NUMBERS)["validation_perplexity"]
    if scale not in numbers:
        raise UsageError(f"published={scale}: {PAPER_NUMBERS} has {', '.join(numbers)}")
    return numbers[scale]
