"""Colours that colour-blind readers can tell apart, and how Vega draws axes, legends and titles."""

from __future__ import annotations

from typing import Any

from lightning_dar.charts.chart import HeatMap, Series

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
