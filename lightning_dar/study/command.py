"""study: a matrix of variants and seeds, trained cell by cell, and a report of what came out."""

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from lightning_dar.errors import UsageError
from lightning_dar.run.parser import PlainParser
from lightning_dar.study.matrix import Cell, StudyConfig, cells_of, merged


def make_parser() -> PlainParser:
    parser = PlainParser(
        description="Train a matrix of variants and seeds, each cell an ordinary fit run, and report what came out.",
        epilog="Finished cells are kept: the same command goes on with the others. OUTPUT gets cells/ (a JSON file for "
        "each), runs/, results.json, table.md, report.html, and a CSV and a PNG of each chart.",
    )
    parser.add_argument("--config", action="config", help="Config of a study, such as configs/study/small.yaml.")
    parser.add_class_arguments(StudyConfig)
    parser.add_argument(
        "--set",
        type=str,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="One setting of all cells over the config's, such as trainer.max_steps=100. Repeat it for several.",
    )
    parser.add_argument("--jobs", type=int, default=1, help="Cells trained at a time, each on `threads` CPU threads.")
    parser.add_argument("--retry", action="store_true", help="Run cells that have failed once more.")
    parser.add_argument("--report", action="store_true", help="Train nothing; report the cells that have ended.")
    return parser


def run(args: list[str]) -> None:
    """Runs the command. Raises UsageError or DataError for bad input."""
    for arg in args:
        if arg.startswith("--settings"):  # which would replace whole sections of the config's without a word
            raise UsageError(f"{arg}: one setting of all cells is --set KEY=VALUE; several belong in a config")
    parser = make_parser()
    options = parser.parse_args(args)
    chosen = parser.instantiate_classes(options)
    study = StudyConfig(**{field.name: chosen[field.name] for field in fields(StudyConfig)})
    study = replace(study, settings=merged(study.settings, *map(_setting, options.set)))
    cells = cells_of(study)
    if options.jobs < 1:
        raise UsageError(f"--jobs {options.jobs}: must be at least 1")
    from lightning_dar.charts.page import check_drawing

    check_drawing()
    if not options.report:
        _train(study, cells, options.jobs, options.retry)
    from lightning_dar.study.report import counted_failures, failures, markdown_table, write_report

    summary = write_report(study, cells)
    print(markdown_table(summary) + counted_failures(failures(summary)))
    print(f"report  {os.path.join(study.output, 'report.html')}")


def _train(study: StudyConfig, cells: Sequence[Cell], jobs: int, retry: bool) -> None:
    from lightning_dar.study.running import alone_in, check_settings, open_study, progress_display, run_cells

    check_settings(cells)
    with alone_in(Path(study.output)):
        state = open_study(cells, jobs, retry)
        with progress_display() as display:
            run_cells(state, display.show)


def _setting(assignment: str) -> dict[str, Any]:
    key, given, value = assignment.partition("=")
    if not (key and given):
        raise UsageError(f"--set {assignment}: must be KEY=VALUE, such as trainer.max_steps=100")
    try:
        return {key: yaml.safe_load(value)}
    except yaml.YAMLError as error:
        raise UsageError(f"--set {assignment}: its value is no YAML") from error
