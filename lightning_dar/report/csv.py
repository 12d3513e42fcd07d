"""A chart as CSV: one line a value, at full precision."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from lightning_dar.report.chart import BarChart, Chart, HeatMap, LineChart, Series
from lightning_dar.report.scale import axis_label


def write_csv(chart: Chart, path: str | Path) -> None:
    """Writes one line a value, under a header with labels and units; an empty field where there is none.

    Columns: series, x, y, low, high of a line chart; group, category, value, low, high of a bar chart; row, column,
    value of a heat map. Every float reads back as it was.
    """
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if isinstance(chart, LineChart):
            writer.writerow(["series", axis_label(chart.x), axis_label(chart.y), "low", "high"])
            writer.writerows(row for series in chart.series for row in _values(series, series.x))
        elif isinstance(chart, BarChart):
            writer.writerow(["group", "category", axis_label(chart.y), "low", "high"])
            for group in chart.groups:
                writer.writerows(_values(group, [chart.categories[int(index)] for index in group.x]))
        else:
            writer.writerow([axis_label(chart.y), axis_label(chart.x), axis_label(chart.value)])
            writer.writerows(_cells(chart))


def _values(series: Series, at: list) -> Iterator[tuple]:
    nothing = [None] * len(series.y)
    for x, y, low, high in zip(at, series.y, series.low or nothing, series.high or nothing, strict=True):
        yield series.name, x, y, low, high


def _cells(chart: HeatMap) -> Iterator[tuple]:
    for row, values in zip(chart.rows, chart.values, strict=True):
        for column, value in zip(chart.columns, values, strict=True):
            yield row, column, value
