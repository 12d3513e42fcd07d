"""Marks of the page's charts as SVG, in a square of 1000 by 1000 that the page stretches to the plot's size.

Text stays out of it: stretched letters cannot be read. Strokes keep their width by `vector-effect`, and a dot is a
stroke of no length with round ends, which stays round.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from lightning_dar.report.chart import HeatMap, Series
from lightning_dar.report.palette import LEVELS
from lightning_dar.report.scale import colour_limits, drawable

SIZE = 1000
MAX_DOTS = 40  # more in one line would only thicken it

Scale = Callable[[float], float]


def scale(low: float, high: float, flip: bool = False) -> Scale:
    """Maps [low, high] to [0, 1000], upwards if `flip`, as SVG counts downwards."""
    span = (high - low) or 1.0
    return lambda value: SIZE * ((high - value) if flip else (value - low)) / span


def svg(*marks: str, width: int = SIZE, height: int = SIZE) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">'
        + "".join(marks)
        + "</svg>"
    )


def stroke(path: str, css: str) -> str:
    return f'<path class="{css}" d="{path}"/>' if path else ""


def grid(x: list[float], y: list[float]) -> str:
    """Lines across at the ticks, given in the square's units."""
    return stroke("".join(f"M{_n(at)} 0V{SIZE}" for at in x) + "".join(f"M0 {_n(at)}H{SIZE}" for at in y), "grid")


def line(series: Series, colour: str, to_x: Scale, to_y: Scale) -> str:
    """The line, broken where there is no value, over the band of its interval. A value alone gets a dot and whisker."""
    nothing = [None] * len(series.y)
    points = list(zip(series.x, series.y, series.low or nothing, series.high or nothing, strict=True))
    runs = [list(run) for there, run in groupby(points, lambda point: drawable(point[1])) if there]
    path = band = whisker = dots = ""
    for run in runs:
        path += "M" + "L".join(f"{_n(to_x(x))} {_n(to_y(y))}" for x, y, _, _ in run)
        bounded = [(to_x(x), to_y(low), to_y(high)) for x, _, low, high in run if drawable(low) and drawable(high)]
        if len(bounded) > 1:
            edge = [(x, low) for x, low, _ in bounded] + [(x, high) for x, _, high in reversed(bounded)]
            band += "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in edge) + "Z"
        elif bounded:
            whisker += "".join(f"M{_n(x)} {_n(low)}V{_n(high)}" for x, low, high in bounded)
        if len(run) == 1 or (len(points) <= MAX_DOTS and not series.dashed):
            dots += "".join(f"M{_n(to_x(x))} {_n(to_y(y))}h0" for x, y, _, _ in run)
    dash = " dashed" if series.dashed else ""
    return (
        stroke(band, f"band {colour}")
        + stroke(whisker, f"line {colour}")
        + stroke(path, f"line {colour}{dash}")
        + stroke(dots, f"dots {colour}")
    )


def bars(groups: list[Series], colours: list[str], categories: int, to_x: Scale) -> str:
    """Horizontal bars from zero, the groups of a category below one another, with whiskers over their intervals."""
    slot = SIZE / max(1, categories)
    thickness = 0.72 * slot / max(1, len(groups))
    marks = []
    for number, (group, colour) in enumerate(zip(groups, colours, strict=True)):
        nothing = [None] * len(group.y)
        body = whisker = ""
        for index, y, low, high in zip(group.x, group.y, group.low or nothing, group.high or nothing, strict=True):
            top = slot * (index + 0.14) + thickness * number
            if drawable(y):
                body += (
                    f"M{_n(to_x(0))} {_n(top + 0.06 * thickness)}H{_n(to_x(y))}v{_n(0.88 * thickness)}H{_n(to_x(0))}Z"
                )
            if drawable(low) and drawable(high):
                cap = 0.3 * thickness
                whisker += f"M{_n(to_x(low))} {_n(top + thickness / 2)}H{_n(to_x(high))}"
                whisker += "".join(
                    f"M{_n(to_x(end))} {_n(top + thickness / 2 - cap)}v{_n(2 * cap)}" for end in (low, high)
                )
        marks.append(stroke(body, f"bar {colour}") + stroke(whisker, "whisker"))
    return "".join(marks) + stroke(f"M{_n(to_x(0))} 0V{SIZE}", "zero")


def cells(chart: HeatMap) -> str:
    """A square a cell, one path a colour; nothing where nothing was measured."""
    paths: dict[int, str] = {}
    low, high = colour_limits(chart)
    for row, values in enumerate(chart.values):
        for column, value in enumerate(values):
            if drawable(value):
                share = (value - low) / ((high - low) or 1.0)
                level = min(LEVELS - 1, max(0, round(share * (LEVELS - 1))))
                paths[level] = paths.get(level, "") + f"M{column} {row}h1v1h-1z"
    ramp = ramp_name(chart)
    return "".join(f'<path style="fill:var(--{ramp}-{level})" d="{path}"/>' for level, path in sorted(paths.items()))


def ramp_name(chart: HeatMap) -> str:
    """The page's name for the colours of a heat map."""
    return "difference" if chart.diverging else "mass"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
