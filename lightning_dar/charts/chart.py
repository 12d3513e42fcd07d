"""Charts as data: the CSV, the PNG and the page are all written from one definition."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
