"""Charts as Vega-Lite specifications, and how they look."""

from __future__ import annotations

import textwrap
from itertools import pairwise
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from lightning_dar.charts.chart import (
    BarChart,
    Chart,
    HeatMap,
    LineChart,
    Series,
    drawable,
    is_measured,
    points,
    short,
    table_of,
    x_values,
)

# After Okabe and Ito.
SERIES = ("#0072b2", "#d55e00", "#008f68", "#b8578f", "#b07a00", "#3f9fd8", "#6b5bb5")
REFERENCE, INK, SOFT, RULE, GRID, PAGE = "#6b7280", "#1b1f24", "#59626e", "#dfe3e8", "#e9ecf0", "#ffffff"
VIRIDIS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
# A larger difference is farther from the page's colour, in either theme.
BLUE_RED = (
    *("#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0"),
    "#f5f5f5",
    *("#fddbc7", "#f4a582", "#d6604d", "#b2182b", "#67001f"),
)

# What each colour becomes on a dark page: lighter, for the same contrast.
DARK = dict(
    zip(
        (*SERIES, REFERENCE, INK, SOFT, RULE, GRID, PAGE, *BLUE_RED),
        (
            *("#56a8e0", "#f28c4a", "#35c198", "#e59ac4", "#e0b040", "#9ad4f5", "#ab9df0"),
            *("#9aa3af", "#e6e9ed", "#a3acb8", "#323840", "#2b3138", "#14171b"),
            *("#b9dcff", "#7dbdf5", "#4a98dd", "#2f6ea8", "#264a6b"),
            "#272b31",
            *("#6b3a2e", "#a8513a", "#dd7450", "#f5a07d", "#ffd3bd"),
        ),
        strict=True,
    )
)

CONFIG: dict[str, Any] = {
    "font": "sans-serif",
    "background": PAGE,
    "lineBreak": "\n",
    "view": {"stroke": None},
    "axis": {
        "labelColor": SOFT,
        "titleColor": SOFT,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "domain": False,
        "ticks": False,
        "labelPadding": 6,
        "labelOverlap": "parity",
        "labelSeparation": 8,
        # A stronger line at zero.
        "gridColor": {"condition": {"test": "datum.value === 0", "value": SOFT}, "value": GRID},
    },
    "legend": {
        "orient": "top",
        "titleColor": SOFT,
        "labelColor": INK,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelLimit": 500,
        "titleLimit": 280,
        "gradientLength": 200,
        "gradientThickness": 10,
        "offset": 10,
    },
    "title": {
        "anchor": "start",
        "frame": "group",
        "color": INK,
        "subtitleColor": SOFT,
        "fontSize": 13,
        "subtitleFontSize": 11,
        "offset": 8,
    },
}


def series_colours(series: list[Series]) -> list[str]:
    """A single dashed series is a grey reference for all others; several have one each, in the order of the solid."""
    references = sum(each.dashed for each in series)
    counts = {True: 0, False: 0}
    colours = []
    for each in series:
        colours.append(REFERENCE if each.dashed and references == 1 else SERIES[counts[each.dashed] % len(SERIES)])
        counts[each.dashed] += 1
    return colours


def colour_scale(chart: HeatMap) -> tuple[list[float], tuple[str, ...]]:
    """Values, ascending, and the colour of each; between them colours are blended."""
    (low, high), colours = chart.colour_limits(), BLUE_RED if chart.diverging else VIRIDIS
    shares = [number / (len(colours) - 1) for number in range(len(colours))]
    return [low + (high - low) * (share**2 if chart.root else share) for share in shares], colours


MAX_DOTS = 40  # more in one line would only thicken it
LINES_HEIGHT, BAR_HEIGHT = 250, 15  # in units of a PNG that is 600 wide
ENDS = ("low", "high")  # of an interval
LINE = {"symbolType": "stroke", "symbolStrokeWidth": 2.5, "symbolOpacity": 1, "symbolSize": 250}  # in a legend
CHANNELS = {"x": alt.X, "y": alt.Y, "x2": alt.X2, "y2": alt.Y2}


def vega_lite(chart: Chart, title: dict[str, Any] | None = None, width: int | None = None) -> dict[str, Any]:
    """The chart in Vega-Lite, `width` units wide; None: as wide as the page's element for it, without a title."""
    on_page = width is None
    fit = alt.AutoSizeParams(type="fit" if isinstance(chart, HeatMap) and on_page else "fit-x", contains="padding")
    with debug_mode(False):  # checks take a second for a large map, and the tests make them
        drawing = _drawing(chart, on_page)
        description = f"{chart.title}; arrow keys show values" if on_page else chart.title
        drawing = drawing.properties(
            description=description, width=width or "container", autosize=fit, **({"title": title} if title else {})
        )
        specification = drawing.to_dict(validate=False)
    del specification["$schema"]  # an address, which the page does without
    if on_page and not isinstance(chart, HeatMap):  # the page has its own legend, where long names may wrap
        for layer in specification["layer"]:
            for channel in {"color", "strokeDash"} & layer["encoding"].keys():
                layer["encoding"][channel]["legend"] = None
    return specification


def together(charts: list[Chart], title: str, across: bool) -> dict[str, Any]:
    """Charts below one another or, `across`, side by side, the first wider and the others as high; in Vega-Lite."""
    height = max(240, 17 * max(len(chart.rows) for chart in charts if isinstance(chart, HeatMap))) if across else 150
    with debug_mode(False):
        drawings = [
            _drawing(chart, on_page=False).properties(width=width, height=height, title=chart.title)
            for chart, width in zip(
                charts, [420, *[180] * len(charts)] if across else [540] * len(charts), strict=False
            )
        ]
        joined = alt.hconcat(*drawings, title=title) if across else alt.vconcat(*drawings, title=title)
        return joined.resolve_scale(color="independent", strokeDash="independent").to_dict(validate=False)


def _drawing(chart: Chart, on_page: bool) -> alt.LayerChart:
    """Without a title and a width; `on_page`: a heat map is as high as its element, and a pointer shows values."""
    if not is_measured(chart):
        nothing = alt.Chart(alt.Data(values=[{}])).mark_text(text="Nothing was measured.", align="left", color=INK)
        return alt.layer(nothing.encode(x=alt.value(0)), height=20)
    if isinstance(chart, HeatMap):
        units = min(560.0, max(180.0, 480.0 * len(chart.rows) / len(chart.columns)))
        return _heat_map(chart).properties(height="container" if on_page else units)
    return _lines(chart, on_page) if isinstance(chart, LineChart) else _bars(chart, on_page)


def _lines(chart: LineChart, on_page: bool) -> alt.LayerChart:
    rows = [row for series in chart.series for row in _rows(series)]
    along, across = ("y", "x") if chart.upright else ("x", "y")
    at = x_values(chart)
    room = 0.02 * (at[-1] - at[0]) or 0.5
    whole = {"tickMinStep": 1, "format": "d"} if all(x == int(x) for x in at) else {}
    span = {"domain": [max(at) + 0.5, -0.5]} if chart.upright else {"domain": [at[0] - room, at[-1] + room]}
    span = alt.Scale(nice=False, **span)
    position = CHANNELS[along]("x:Q", title=str(chart.x), scale=span, axis=alt.Axis(grid=False, **whole))
    scale = alt.Scale(domain=value_range(chart.series), nice=False)
    value = CHANNELS[across]("y:Q", title=str(chart.y), scale=scale)
    ends = {across: CHANNELS[across]("low:Q", title=str(chart.y), scale=scale), f"{across}2": "high:Q"}
    dashes = [[5, 4] if series.dashed else [1, 0] for series in chart.series]
    dash = alt.StrokeDash("name:N", scale=alt.Scale(domain=_names(chart.series), range=dashes))
    base = alt.Chart().encode(position, _colour(chart.series, **(LINE if not chart.stacked else {})))
    if chart.stacked:
        value = CHANNELS[across]("y:Q", title=str(chart.y), stack="zero", scale=alt.Scale(nice=False))
        layers = [base.mark_area(interpolate="step").encode(value)]
    else:
        layers = [base.mark_line(strokeWidth=2).encode(value, dash, order="x:Q")]
    if any(row["low"] is not None for row in rows):
        bounded = base.encode(**ends).transform_filter("datum.low !== null && datum.high !== null")
        layers[:0] = [base.mark_area(opacity=0.18).encode(**ends), bounded.mark_rule().transform_filter("datum.alone")]
    if not chart.stacked:
        layers.append(base.mark_point(filled=True, size=32, opacity=1).encode(value).transform_filter("datum.dot"))
    pointed = _pointed(chart).encode(CHANNELS[along]("start:Q", title=str(chart.x)), **{f"{along}2": "end:Q"})
    layers += [pointed] if on_page else []
    return alt.layer(*layers, data=alt.Data(values=rows), height=LINES_HEIGHT)


def _rows(series: Series) -> list[dict[str, Any]]:
    """One row per value. `alone`: without a neighbour, so that no line shows it."""
    there = [False, *map(drawable, series.y), False]
    few = 2 < len(series.y) <= MAX_DOTS and not series.dashed
    rows = []
    for number, numbers in enumerate(points(series), start=1):
        x, y, low, high = (value if drawable(value) else None for value in numbers)
        alone = there[number] and not (there[number - 1] or there[number + 1])
        dot = there[number] and (few or alone)
        rows.append({"name": series.name, "x": x, "y": y, "low": low, "high": high, "alone": alone, "dot": dot})
    return rows


def _bars(chart: BarChart, on_page: bool) -> alt.LayerChart:
    rows = [{**row, "category": int(row["x"])} for group in chart.groups for row in _rows(group)]
    scale = alt.Scale(domain=value_range(chart.groups, include_zero=True), nice=False)
    wrapped = ["\n".join(textwrap.wrap(category, 24)) for category in chart.categories]
    labels = alt.Axis(
        labelExpr=f"split({wrapped}[datum.value], '\\n')",
        labelColor=INK,
        grid=False,
        labelLimit=160,
        labelOverlap=False,
    )
    category = alt.Y("category:O", title=None, axis=labels, scale=alt.Scale(paddingInner=0.25, paddingOuter=0.125))
    base = alt.Chart().encode(
        category, alt.YOffset("name:N", sort=_names(chart.groups), scale=alt.Scale(paddingInner=0.12))
    )
    bars = base.mark_bar().encode(alt.X("y:Q", title=str(chart.y), scale=scale), _colour(chart.groups))
    layers = [bars]
    if any(row["low"] is not None for row in rows):
        ends = base.transform_filter("datum.low !== null && datum.high !== null")
        layers.append(ends.mark_rule(color=INK).encode(alt.X("low:Q", title=str(chart.y), scale=scale), x2="high:Q"))
        layers += [ends.mark_tick(color=INK, size=8).encode(alt.X(f"{end}:Q", title=str(chart.y))) for end in ENDS]
    whole = alt.RelativeBandSize(band=1.34)  # with the room between categories
    pointed = _pointed(chart, height=whole).encode(alt.Y("at:O"))
    height = max(44, BAR_HEIGHT * len(chart.categories) * (len(chart.groups) + 0.8))
    layers += [pointed] if on_page else []
    return alt.layer(*layers, data=alt.Data(values=rows), height=height)


def _heat_map(chart: HeatMap) -> alt.LayerChart:
    rows = [
        {"row": row, "column": column, "value": value, "text": short(value)}
        for row, values in zip(chart.rows, chart.values, strict=True)
        for column, value in zip(chart.columns, values, strict=True)
        if drawable(value)
    ]
    size = [alt.RelativeBandSize(band=1 + 0.0005 * len(names)) for names in (chart.columns, chart.rows)]  # no seams
    cells = (
        alt.Chart(alt.Data(values=rows))
        .mark_rect(width=size[0], height=size[1])
        .encode(
            alt.X("column:O", title=str(chart.x), **_band(chart.columns, labelAngle=0)),
            alt.Y("row:O", title=str(chart.y), **_band(chart.rows)),
            _cell_colour(chart),
            tooltip=[
                alt.Tooltip("text:N", title=str(chart.value)),
                alt.Tooltip("row:N", title=chart.y.label),
                alt.Tooltip("column:N", title=chart.x.label),
            ],
        )
    )
    return alt.layer(_hatching(), cells).resolve_scale(x="independent", y="independent")


def _band(names: list[str], **labels: Any) -> dict[str, Any]:
    return {
        "scale": alt.Scale(domain=names, paddingInner=0, paddingOuter=0),
        "axis": alt.Axis(grid=False, **labels),
    }


def _cell_colour(chart: HeatMap) -> alt.Color:
    """With signs at the ends of the legend where values lie beyond them."""
    values, colours = colour_scale(chart)
    below, above = chart.clipped()
    ends = [values[0], (values[0] + values[-1]) / 2, values[-1]]
    signs = f"datum.value == {ends[0]} ? '{'≤ ' * below}' : datum.value == {ends[2]} ? '{'≥ ' * above}' : ''"
    label = f"({signs}) + datum.label"
    legend = alt.Legend(title=str(chart.value), values=ends, labelExpr=label, format=".3~g")
    scale = alt.Scale(domain=values, range=colours, clamp=True, interpolate="rgb")
    return alt.Color("value:Q", scale=scale, legend=legend)


def _hatching(lines: int = 40) -> alt.Chart:
    """Diagonals behind the cells, seen where nothing was measured."""
    ends = [
        ((number - lines if number > lines else 0) / lines, min(number, lines) / lines) for number in range(2 * lines)
    ]
    rows = [{"low": low, "high": high} for low, high in ends]
    unit = {"scale": alt.Scale(domain=[0, 1]), "axis": None}
    rules = alt.Chart(alt.Data(values=rows)).mark_rule(color=RULE)
    return rules.encode(alt.X("low:Q", **unit), alt.Y("high:Q", **unit), x2="high:Q", y2="low:Q")


def _pointed(chart: LineChart | BarChart, **size: Any) -> alt.Chart:
    """A strip for each row of the chart's table, seen under the pointer, with the row's values as its tooltip."""
    table, at = table_of(chart), x_values(chart)
    borders = [at[0], *((left + right) / 2 for left, right in pairwise(at)), at[-1]]
    rows = [
        {"at": x, "start": start, "end": end, "name": name, **{f"value{n}": cell for n, cell in enumerate(cells)}}
        for x, (start, end), name, cells in zip(at, pairwise(borders), table.names, table.cells, strict=True)
    ]
    shown = [alt.Tooltip("name:N", title=table.corner or " ")]
    shown += [alt.Tooltip(f"value{number}:N", title=column) for number, column in enumerate(table.columns)]
    pointed = alt.selection_point(on="pointerover", clear="pointerout", empty=False, fields=["at"])
    opacity = alt.condition(pointed, alt.value(0.16), alt.value(0))
    strips = alt.Chart(alt.Data(values=rows)).mark_rect(color=SOFT, cursor="crosshair", **size)
    return strips.encode(opacity=opacity, tooltip=shown).add_params(pointed)


def _colour(series: list[Series], **symbols: Any) -> alt.Color:
    scale = alt.Scale(domain=_names(series), range=series_colours(series))
    letters = sum(len(each.name) + 6 for each in series)
    columns = len(series) if letters < 90 else 1
    return alt.Color("name:N", scale=scale, legend=alt.Legend(title=None, columns=columns, **symbols))


def _names(series: list[Series]) -> list[str]:
    return [each.name for each in series]


def value_range(series: list[Series], include_zero: bool = False) -> tuple[float, float]:
    """Low and high end of an axis that shows all values and intervals of `series`.

    It starts at zero where the values come near it, and leaves 4% of room beyond the others.
    """
    values = [v for one in series for part in (one.y, one.low or [], one.high or []) for v in part if drawable(v)]
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
