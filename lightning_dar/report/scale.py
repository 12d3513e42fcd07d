"""Ranges, ticks and rounding that every drawing of a chart shares, so that the PNG and the page show the same."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lightning_dar.report.chart import Axis, BarChart, Chart, HeatMap, LineChart, Series

CLIP_QUANTILE, CLIP_FACTOR = 0.95, 3.0


def drawable(value: float | None) -> bool:
    """Whether there is a number to draw: not where nothing was measured, nor where a loss overflowed."""
    return value is not None and math.isfinite(value)


def measured(chart: Chart) -> bool:
    """Whether the chart has any number to draw."""
    if isinstance(chart, HeatMap):
        return any(drawable(value) for row in chart.values for value in row)
    return any(drawable(y) for series in series_of(chart) for y in series.y)


def series_of(chart: LineChart | BarChart) -> list[Series]:
    return chart.series if isinstance(chart, LineChart) else chart.groups


def lone_points(series: Series) -> list[int]:
    """Indices of the values without a neighbour, which no line shows."""
    there = [False, *map(drawable, series.y), False]
    return [i for i in range(len(series.y)) if there[i + 1] and not there[i] and not there[i + 2]]


def axis_label(axis: Axis) -> str:
    return f"{axis.label} ({axis.unit})" if axis.unit else axis.label


def value_range(series: Iterable[Series], include_zero: bool = False) -> tuple[float, float]:
    """Low and high end of an axis that shows all values and intervals of `series`; (0, 1) where there are none.

    It starts at zero where the values come near it, and leaves 4% of room beyond the others.
    """
    values = [v for one in series for part in (one.y, one.low or [], one.high or []) for v in part if drawable(v)]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if include_zero or 0 <= low <= 0.5 * high:
        low = min(low, 0.0)
    if include_zero or 0.5 * low <= high <= 0:
        high = max(high, 0.0)
    if high == low:
        room = 0.1 * abs(low) or 1.0
        return low - room, high + room
    room = 0.04 * (high - low)
    return (low if low == 0 else low - room), (high if high == 0 else high + room)


def ticks(low: float, high: float, most: int = 6, whole: bool = False) -> list[float]:
    """At most `most` round numbers from `low` to `high`, evenly spaced; `whole`: integers only."""
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12 - math.floor(math.log10(step))) for index in range(first, last + 1)]


def tick_labels(values: list[float]) -> list[str]:
    """The ticks with the decimals that tell them apart."""
    step = values[1] - values[0] if len(values) > 1 else abs(values[0]) if values else 1.0
    largest = max((abs(value) for value in values), default=0.0)
    if largest >= 1e6 or 0 < largest < 1e-3:
        return [f"{value:.3g}" for value in values]
    decimals = next((d for d in range(10) if abs(round(step, d) - step) < 1e-6 * (step or 1)), 10)
    return [f"{value:.{decimals}f}" for value in values]


def short(value: float | None) -> str:
    """A value for people: four digits behind the point from 1 up, four significant ones below; empty for None."""
    if value is None:
        return ""
    if not math.isfinite(value) or value == int(value):
        return f"{value:,.0f}"
    if abs(value) >= 1000:
        return f"{value:,.1f}"
    return f"{value:.4f}" if abs(value) >= 1 else f"{value:.4g}"


def colour_limits(chart: HeatMap) -> tuple[float, float]:
    """The values at the two ends of a heat map's colours: `chart.limits`, or taken from its values.

    Masses start at zero and differences are symmetric about it. Where a few cells would leave all others in one
    colour (the largest is over 3 times the 95th percentile), the colours end at that percentile; see `clipped`.
    """
    if chart.limits is not None:
        return chart.limits
    values = [value for row in chart.values for value in row if drawable(value)]
    if not values:
        return (-1.0, 1.0) if chart.diverging else (0.0, 1.0)
    sizes = sorted(abs(value) for value in values)
    end = sizes[-1]
    usual = sizes[math.ceil(CLIP_QUANTILE * len(sizes)) - 1]
    if 0 < CLIP_FACTOR * usual < end:
        end = usual
    end = _rounded_up(end) if end else 1.0
    return (-end if chart.diverging or min(values) < 0 else 0.0), end


def _rounded_up(value: float) -> float:
    """To two significant digits, which the ends of the colours are labelled with."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.2g}")


def clipped(chart: HeatMap) -> tuple[bool, bool]:
    """Whether values lie below, and above, the ends of the colours."""
    low, high = colour_limits(chart)
    values = [value for row in chart.values for value in row if drawable(value)]
    return any(value < low for value in values), any(value > high for value in values)
