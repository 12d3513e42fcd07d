"""Charts as data, and the table under each."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


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


CLIP_QUANTILE, CLIP_FACTOR = 0.95, 3.0


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis, or the colour of a heat map, measures."""

    label: str
    unit: str = ""  # shown behind the label, such as "nats per token"

    def __str__(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart. None where there is no value; `low` and `high` bound an interval, such as 95%."""

    name: str
    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    dashed: bool = False  # a reference, such as uniform 1/n


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Series over a shared numeric x. `name` is the stem of its files."""

    name: str
    title: str
    caption: str  # one or two sentences: what is drawn, and how to read it
    x: Axis
    y: Axis
    series: list[Series]
    upright: bool = False  # x runs down, as the rows of a heat map beside it
    stacked: bool = False  # the series are shares of a whole, one upon the other


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """One value per category, with an interval where `low` and `high` are given; `groups` are drawn side by side."""

    name: str
    title: str
    caption: str
    categories: list[str]
    y: Axis
    groups: list[Series]  # x is the index of the category


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """values[row][column], None where nothing is measured."""

    name: str
    title: str
    caption: str
    x: Axis
    y: Axis
    columns: list[str]
    rows: list[str]
    value: Axis
    values: list[list[float | None]]
    diverging: bool = False  # colours centred on zero
    root: bool = False  # colours by the square root of the value: small weights stay apart
    limits: tuple[float, float] | None = None  # values at the ends of the colours, such as (0, 1); None: measured

    def colour_limits(self) -> tuple[float, float]:
        """The values at the two ends of the colours: `limits`, or taken from the values.

        Masses start at zero and differences are symmetric about it. Where a few cells would leave all others in one
        colour (the largest is over 3 times the 95th percentile), the colours end at that percentile; see `clipped`.
        """
        if self.limits is not None:
            return self.limits
        values = self._drawable()
        sizes = sorted(abs(value) for value in values)
        end = sizes[-1] if sizes else 0.0
        usual = sizes[math.ceil(CLIP_QUANTILE * len(sizes)) - 1] if sizes else 0.0
        if 0 < CLIP_FACTOR * usual < end:
            end = usual
        end = _rounded_up(end) if end else 1.0
        return (-end if self.diverging or min(values, default=0) < 0 else 0.0), end

    def clipped(self) -> tuple[bool, bool]:
        """Whether values lie below, and above, the ends of the colours."""
        low, high = self.colour_limits()
        return any(value < low for value in self._drawable()), any(value > high for value in self._drawable())

    def _drawable(self) -> list[float]:
        return [value for row in self.values for value in row if drawable(value)]


Chart = LineChart | BarChart | HeatMap


@dataclass(frozen=True, kw_only=True)
class Section:
    """Charts under one heading, with a sentence before them."""

    heading: str
    text: str
    charts: list[Chart]


def drawable(value: float | None) -> bool:
    """Whether there is a number to draw: not where nothing was measured, nor where a loss overflowed."""
    return value is not None and math.isfinite(value)


def series_of(chart: LineChart | BarChart) -> list[Series]:
    return chart.series if isinstance(chart, LineChart) else chart.groups


def is_measured(chart: Chart) -> bool:
    """Whether the chart has any number to draw."""
    rows = chart.values if isinstance(chart, HeatMap) else [series.y for series in series_of(chart)]
    return any(drawable(value) for row in rows for value in row)


def _rounded_up(value: float) -> float:
    """To two significant digits, which the ends of the colours are labelled with."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.2g}")
