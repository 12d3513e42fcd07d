"""A chart as a PNG file, in the page's colours."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

from lightning_dar.report import palette
from lightning_dar.report.chart import BarChart, Chart, HeatMap, LineChart, Series
from lightning_dar.report.scale import (
    axis_label,
    clipped,
    colour_limits,
    drawable,
    lone_points,
    measured,
    series_of,
    value_range,
)

WIDTH, DPI = 8.0, 150  # inches, dots per inch
MAX_DOTS, MAX_TICKS = 40, 24


def write_png(chart: Chart, path: str | Path) -> None:
    """Draws the chart, 1200 pixels wide, without pyplot: no window system, and no figure outlives its use."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"text.parse_math": False}):  # a name may hold dollar signs
        figure = Figure(figsize=(WIDTH, _height(chart)), layout="constrained")
        axes = figure.subplots()
        if measured(chart):
            {LineChart: _lines, BarChart: _bars, HeatMap: _heat_map}[type(chart)](axes, chart)
        else:
            axes.set_axis_off()
            axes.text(0, 0.9, "Nothing was measured.", transform=axes.transAxes)
        _title(axes, chart)
        figure.supxlabel(
            "\n".join(textwrap.wrap(chart.caption, 115)), x=0.01, ha="left", fontsize="small", color="0.35"
        )
        figure.savefig(path, dpi=DPI)


def _height(chart: Chart) -> float:
    if not measured(chart):
        return 1.6
    if isinstance(chart, HeatMap):
        ratio = len(chart.rows) / max(1, len(chart.columns))
        return 1.4 + min(7.5, max(2.4, 6.2 * ratio))
    if isinstance(chart, BarChart):
        return 1.6 + max(0.8, 0.22 * len(chart.categories) * (len(chart.groups) + 0.8)) + 0.2 * len(chart.groups)
    return 4.4 + 0.2 * len(chart.series)


def _lines(axes: Any, chart: LineChart) -> None:
    for series, colour in zip(chart.series, _colours(chart.series), strict=True):
        lone, few = lone_points(series), len(series.x) <= MAX_DOTS and not series.dashed
        axes.plot(
            series.x,
            _numbers(series.y),
            linestyle="--" if series.dashed else "-",
            marker="o" if few or lone else "",
            markevery=None if few else lone,
            markersize=3.5,
            color=colour,
            label=series.name,
        )
        if series.low is not None and series.high is not None:
            low, high = _numbers(series.low), _numbers(series.high)
            axes.fill_between(series.x, low, high, color=colour, alpha=0.18, lw=0)
            axes.vlines([series.x[i] for i in lone], [low[i] for i in lone], [high[i] for i in lone], color=colour)
    axes.set(xlabel=axis_label(chart.x), ylabel=axis_label(chart.y), ylim=value_range(chart.series))
    if all(x == int(x) for series in chart.series for x in series.x):
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", alpha=0.25)


def _bars(axes: Any, chart: BarChart) -> None:
    thickness = 0.72 / max(1, len(chart.groups))
    for number, (group, colour) in enumerate(zip(chart.groups, _colours(chart.groups), strict=True)):
        at = [index - 0.36 + thickness * (number + 0.5) for index in group.x]
        axes.barh(at, _numbers(group.y), 0.88 * thickness, color=colour, label=group.name)
        if group.low is not None and group.high is not None:
            low, high = _numbers(group.low), _numbers(group.high)
            axes.hlines(at, low, high, color="0.1", lw=1)
            for end in (low, high):
                axes.plot(end, at, "|", color="0.1", ms=5)
    axes.axvline(0, color="0.4", lw=0.8)
    names = ["\n".join(textwrap.wrap(category, 24)) for category in chart.categories]
    axes.set_yticks(range(len(names)), names)
    axes.set(
        xlabel=axis_label(chart.y), xlim=value_range(chart.groups, include_zero=True), ylim=(len(names) - 0.5, -0.5)
    )
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)


def _heat_map(axes: Any, chart: HeatMap) -> None:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    values = np.array([_numbers(row) for row in chart.values])
    low, high = colour_limits(chart)
    colours = LinearSegmentedColormap.from_list(chart.name, palette.BLUE_RED if chart.diverging else palette.VIRIDIS)
    image = axes.imshow(values, aspect="auto", cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    axes.patch.set(hatch="////", edgecolor="#dfe3e8")  # shows where nothing was measured
    extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(clipped(chart), "neither")
    axes.figure.colorbar(image, ax=axes, pad=0.02, extend=extend, label=axis_label(chart.value))
    axes.set(xlabel=axis_label(chart.x), ylabel=axis_label(chart.y))
    for names, set_ticks in ((chart.rows, axes.set_yticks), (chart.columns, axes.set_xticks)):
        longest = max(map(len, names), default=0)
        most = MAX_TICKS if names is chart.rows else max(4, min(MAX_TICKS, 70 // (longest + 2)))
        step = max(1, math.ceil(len(names) / most))
        set_ticks(range(0, len(names), step), [textwrap.shorten(name, 24) for name in names[::step]], fontsize="small")


def _title(axes: Any, chart: Chart) -> None:
    """The title over the legend over the plot, so that neither lies on the data."""
    rows = 0
    if not isinstance(chart, HeatMap) and measured(chart):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(-0.01, 1.0), borderaxespad=0.2)
        rows = len(series_of(chart))
    title = "\n".join(textwrap.wrap(chart.title, 75))
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold", pad=6 + 15 * rows)


def _colours(series: list[Series]) -> list[str]:
    return [palette.REFERENCE if n is None else palette.SERIES[n] for n in palette.series_colours(series)]


def _numbers(values: list[float | None]) -> list[float]:
    return [value if drawable(value) else math.nan for value in values]
