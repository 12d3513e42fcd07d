"""The numbers of a chart: as CSV at full precision, and as the table that the page shows."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lightning_dar.charts.chart import BarChart, Chart, HeatMap, LineChart, Series, series_of


def write_csv(chart: Chart, path: str | Path) -> None:
    """Writes one line per value, under a header with labels and units; an empty field where there is no value.

    Columns: series, x, y, low, high of a line chart; group, category, value, low, high of a bar chart; row, column,
    value of a heat map. Every float reads back as it was.
    """
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if isinstance(chart, HeatMap):
            writer.writerow([str(chart.y), str(chart.x), str(chart.value)])
            for row, values in zip(chart.rows, chart.values, strict=True):
                writer.writerows((row, column, value) for column, value in zip(chart.columns, values, strict=True))
        elif isinstance(chart, LineChart):
            writer.writerow(["series", str(chart.x), str(chart.y), "low", "high"])
            writer.writerows((series.name, *point) for series in chart.series for point in points(series))
        else:
            writer.writerow(["group", "category", str(chart.y), "low", "high"])
            for group in chart.groups:
                writer.writerows((group.name, chart.categories[int(x)], *rest) for x, *rest in points(group))


@dataclass(frozen=True, kw_only=True)
class Table:
    """One row per value of x, category or row of the chart, in this order; one column per series, group or column."""

    corner: str
    columns: list[str]
    names: list[str]  # of the rows
    cells: list[list[str]]


def table_of(chart: Chart) -> Table:
    """The values as people read them, with the ends of their intervals."""
    if isinstance(chart, HeatMap):
        cells = [[short(value) for value in values] for values in chart.values]
        return Table(corner=f"{chart.y} \\ {chart.x}", columns=chart.columns, names=chart.rows, cells=cells)
    at = x_values(chart)
    by_x = [{x: _with_interval(*values) for x, *values in points(series)} for series in series_of(chart)]
    return Table(
        corner="" if isinstance(chart, BarChart) else str(chart.x),
        columns=[series.name for series in series_of(chart)],
        names=chart.categories if isinstance(chart, BarChart) else [short(x) for x in at],
        cells=[[column.get(x, "") for column in by_x] for x in at],
    )


def x_values(chart: LineChart | BarChart) -> list[float]:
    """Every x of the chart's series, ascending; the number of every category."""
    if isinstance(chart, BarChart):
        return [float(number) for number in range(len(chart.categories))]
    return sorted({x for series in chart.series for x in series.x})


def points(series: Series) -> Iterator[tuple[float, float | None, float | None, float | None]]:
    """(x, y, low, high) of each value."""
    nothing = [None] * len(series.y)
    return zip(series.x, series.y, series.low or nothing, series.high or nothing, strict=True)


def short(value: float | None) -> str:
    """A value for people: four digits behind the point from 1 up, four significant ones below; empty for None."""
    if value is None:
        return ""
    if not math.isfinite(value) or value == int(value):
        return f"{value:,.0f}"
    if abs(value) >= 1000:
        return f"{value:,.1f}"
    return f"{value:.4f}" if abs(value) >= 1 else f"{value:.4g}"


def _with_interval(y: float | None, low: float | None, high: float | None) -> str:
    has_interval = y is not None and low is not None and high is not None
    return f"{short(y)} [{short(low)}, {short(high)}]" if has_interval else short(y)
