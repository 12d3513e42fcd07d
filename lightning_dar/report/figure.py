"""A chart as a piece of the page: title, legend, axes, marks and table.

The marks are SVG that stretches with the page (see `svg`); ticks and labels are text around it, placed by
percentages, so that they keep their size on a phone.
"""

from __future__ import annotations

import math
from html import escape

from lightning_dar.report import svg
from lightning_dar.report.chart import BarChart, Chart, HeatMap, LineChart, Series
from lightning_dar.report.palette import LEVELS, series_colours
from lightning_dar.report.scale import axis_label, clipped, colour_limits, measured, tick_labels, ticks, value_range
from lightning_dar.report.table import table, value_label, x_values

CELL_PIXELS, MIN_WIDTH = 44, 240  # of heat maps with few columns
MAX_LABELS, MAX_GUTTER = 18, 16  # labels along a side of a heat map; letters beside a plot
NOTHING = '<p class="nothing">Nothing was measured.</p>'


def figure(chart: Chart) -> str:
    """The chart's `<figure>`."""
    draw = {LineChart: _lines, BarChart: _bars, HeatMap: _heat_map}[type(chart)]
    drawing = draw(chart) if measured(chart) else NOTHING
    return (
        f'<figure id="{escape(chart.name)}"><figcaption><h3>{escape(chart.title)}</h3>'
        f"<p>{escape(chart.caption)}</p></figcaption>{drawing}"
        f'<details><summary>Table</summary><div class="scroll" tabindex="0">{table(chart)}</div></details></figure>'
    )


def _lines(chart: LineChart) -> str:
    colours = _colours(chart.series)
    x, y = x_values(chart), value_range(chart.series)
    (low, high), whole = _x_range(x), all(value == int(value) for value in x)
    to_x, to_y = svg.scale(low, high), svg.scale(*y, flip=True)
    at_x, at_y = ticks(low, high, most=10, whole=whole), ticks(*y)
    marks = [svg.line(*one, to_x, to_y) for one in zip(chart.series, colours, strict=True)]
    zero = svg.stroke(f"M0 {to_y(0):.1f}H{svg.SIZE}", "zero") if y[0] <= 0 <= y[1] else ""
    places = " ".join(f"{to_x(value) / svg.SIZE:.5f}" for value in x)
    return _legend(chart.series, colours) + _frame(
        chart,
        svg.svg(svg.grid([], [to_y(value) for value in at_y]), zero, *marks),
        kind="lines",
        data={"at": places},
        y_label=axis_label(chart.y),
        y_ticks=_ticks(at_y, to_y, "top"),
        x_ticks=_ticks(at_x, to_x, "left"),
        x_label=axis_label(chart.x),
        gutter=_longest(tick_labels(at_y)),
    )


def _bars(chart: BarChart) -> str:
    colours = _colours(chart.groups)
    low, high = value_range(chart.groups, include_zero=True)
    to_x, at = svg.scale(low, high), ticks(low, high, most=7)
    marks = svg.bars(chart.groups, colours, len(chart.categories), to_x)
    height = 1.1 * len(chart.categories) * (len(chart.groups) + 0.8)
    return _legend(chart.groups, colours) + _frame(
        chart,
        svg.svg(svg.grid([to_x(value) for value in at], []), marks),
        kind="bars",
        data={"rows": len(chart.categories)},
        y_ticks="".join(f"<span>{escape(category)}</span>" for category in chart.categories),
        x_ticks=_ticks(at, to_x, "left"),
        x_label=axis_label(chart.y),
        gutter=_longest(chart.categories),
        style=f"--height:{max(4, height):.1f}rem",
    )


def _heat_map(chart: HeatMap) -> str:
    rows, columns = len(chart.rows), len(chart.columns)
    ratio, width = min(2.5, max(0.8, columns / rows)), max(MIN_WIDTH, CELL_PIXELS * columns)
    most = min(MAX_LABELS, 3 * MAX_LABELS // (2 + _longest(chart.columns)) + 1)  # they lie beside each other
    return _colour_bar(chart) + _frame(
        chart,
        svg.svg(svg.cells(chart), width=columns, height=rows),
        kind="heat",
        data={"rows": rows, "columns": columns, "row-label": chart.y.label, "column-label": chart.x.label},
        y_label=axis_label(chart.y),
        y_ticks=_names(chart.rows, "top", MAX_LABELS),
        x_ticks=_names(chart.columns, "left", most),
        x_label=axis_label(chart.x),
        gutter=_longest(chart.rows[:: _step(rows, MAX_LABELS)]),
        style=f"--ratio:{ratio:.3f};--width:{width}px",
    )


def _frame(
    chart: Chart, drawing: str, *, kind: str, data: dict[str, object], y_ticks: str, x_ticks: str, x_label: str,
    gutter: int, y_label: str = "", style: str = "",
) -> str:  # fmt: skip
    """Axes around the marks. `data`: what `page.js` needs; `gutter`: letters of the longest label beside the plot."""
    attributes = {"kind": kind, "label": value_label(chart), **data}
    shown = "".join(f' data-{name}="{escape(str(value))}"' for name, value in attributes.items())
    return (
        f'<div class="frame {kind}" style="--gutter:{min(gutter, MAX_GUTTER)}ch;{style}">'
        + (f'<p class="y-label">{escape(y_label)}</p>' if y_label else "")
        + f'<div class="y-ticks">{y_ticks}</div><div class="plot" tabindex="0" role="img"'
        f' aria-label="{escape(chart.title)}; arrow keys show values"{shown}>{drawing}</div>'
        f'<div class="x-ticks">{x_ticks}</div><p class="x-label">{escape(x_label)}</p></div>'
    )


def _ticks(values: list[float], place: svg.Scale, side: str) -> str:
    """Labels at their places; on a phone every other one of many is left out."""
    many = side == "left" and len(values) > 5
    return "".join(
        f'<span{_wide(many and index % 2)} style="{side}:{place(value) / 10:.2f}%">{label}</span>'
        for index, (value, label) in enumerate(zip(values, tick_labels(values), strict=True))
    )


def _names(names: list[str], side: str, most: int) -> str:
    """Names of rows or columns in the middle of their cells, at most `most` of them."""
    shown = range(0, len(names), _step(len(names), most))
    return "".join(
        f'<span{_wide(len(shown) > 8 and index % 2)} style="{side}:{100 * (at + 0.5) / len(names):.2f}%">'
        f"{escape(names[at])}</span>"
        for index, at in enumerate(shown)
    )


def _wide(only: bool | int) -> str:
    return ' class="wide"' if only else ""


def _legend(series: list[Series], colours: list[str]) -> str:
    entries = "".join(
        f'<li class="{colour}{" dashed" if one.dashed else ""}"><i></i>{escape(one.name)}</li>'
        for one, colour in zip(series, colours, strict=True)
    )
    return f'<ul class="legend">{entries}</ul>'


def _colour_bar(chart: HeatMap) -> str:
    low, high = colour_limits(chart)
    below, above = clipped(chart)
    stops = ",".join(f"var(--{svg.ramp_name(chart)}-{level})" for level in range(0, LEVELS, 4))
    labels = [f"{'≤ ' * below}{low:.3g}", f"{(low + high) / 2:.3g}", f"{'≥ ' * above}{high:.3g}"]
    return (
        f'<div class="colour-bar"><p>{escape(axis_label(chart.value))}</p>'
        f'<div class="ramp" style="background:linear-gradient(to right,{stops})"></div>'
        f"<div>{''.join(f'<span>{label}</span>' for label in labels)}</div></div>"
    )


def _x_range(x: list[float]) -> tuple[float, float]:
    if not x:
        return 0.0, 1.0
    room = 0.02 * (x[-1] - x[0]) or 0.5
    return x[0] - room, x[-1] + room


def _colours(series: list[Series]) -> list[str]:
    return ["reference" if number is None else f"series-{number}" for number in series_colours(series)]


def _longest(labels: list[str]) -> int:
    return max(map(len, labels), default=1)


def _step(count: int, most: int) -> int:
    return max(1, math.ceil(count / most))
