"""A report in files: one HTML page that asks nothing of the network, and a CSV and a PNG of each chart."""

from __future__ import annotations

import base64
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lightning_dar.charts.chart import Chart, HeatMap, Section, Series, is_measured, series_of
from lightning_dar.charts.look import CONFIG, DARK, series_colours
from lightning_dar.charts.render import png, vega_lite_version
from lightning_dar.charts.table import table_of, write_csv

ON_PAGE = {"font": "system-ui, sans-serif", "axisX": {"titleAnchor": "end"}}  # long titles have the room to the left
LISTED = ("settings", "data", "versions")


def write_report(folder: Path, title: str, lead: str, sections: list[Section], data: dict[str, Any]) -> None:
    """Writes `folder`/report.html, and NAME.csv and NAME.png of each chart beside it.

    Args:
        folder: exists.
        title: of the page.
        lead: paragraphs, parted by blank lines.
        sections: the charts.
        data: embedded as JSON, every number at full precision, in `<script type="application/json" id="report">`. Its
            entries "settings", "data" and "versions", where there are such, are listed at the end.

    Raises:
        ValueError: a NaN or an infinity in `data`, which JSON does not have: say None.
    """
    pictures = {}
    for chart in (chart for section in sections for chart in section.charts):
        write_csv(chart, folder / f"{chart.name}.csv")
        pictures[chart.name] = png(chart)
        (folder / f"{chart.name}.png").write_bytes(pictures[chart.name])
    page = page_of(title, lead, sections, data, pictures)
    (folder / "report.html").write_text(page, encoding="utf-8")


def page_of(title: str, lead: str, sections: list[Section], data: dict[str, Any], pictures: dict[str, bytes]) -> str:
    """The page as text. `pictures` are the charts' PNGs by name, for readers without JavaScript."""
    from jinja2 import Environment
    from markupsafe import Markup

    from lightning_dar.charts.vega import vega_lite

    charts = [chart for section in sections for chart in section.charts if is_measured(chart)]
    specifications = {chart.name: vega_lite(chart) for chart in charts}
    template = Environment(autoescape=True).from_string(_asset("page.html"))
    return template.render(
        title=title,
        lead=[paragraph for paragraph in lead.split("\n\n") if paragraph.strip()],
        sections=sections,
        data=data,
        charts={"specifications": specifications, "config": {**CONFIG, **ON_PAGE}, "dark": DARK},
        made={name.capitalize(): _entries(data[name]) for name in LISTED if data.get(name)},
        css=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
        vega=Markup(_vega()),
        embedded=lambda content: Markup(_embedded(content)),
        is_measured=is_measured,
        table_of=table_of,
        legend=_legend,
        kind=lambda chart: "heat-map" if isinstance(chart, HeatMap) else "",
        ratio=_ratio,
        png=lambda chart: base64.b64encode(pictures[chart.name]).decode(),
    )


def _legend(chart: Chart) -> list[tuple[Series, str, str]]:
    """Each series with its colours on a light and on a dark page; outside the drawing, where long names may wrap."""
    series = [] if isinstance(chart, HeatMap) else series_of(chart)
    return [(each, colour, DARK[colour]) for each, colour in zip(series, series_colours(series), strict=True)]


def _ratio(chart: Chart) -> float:
    """Width by height on the page, of a heat map."""
    return 1.0 if not isinstance(chart, HeatMap) else min(2.2, max(0.8, 0.95 * len(chart.columns) / len(chart.rows)))


def _entries(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Terms and values, nested ones with a dot in the name."""
    entries = []
    for name, value in values.items():
        if isinstance(value, dict):
            entries += _entries(value, f"{prefix}{name}.")
        else:
            entries.append(
                (f"{prefix}{name}", ", ".join(map(str, value)) if isinstance(value, list | tuple) else value)
            )
    return entries


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end its own script element, nor open a comment in it."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


@cache
def _vega() -> str:
    """The scripts that draw, about 0.9 MB."""
    import vl_convert

    return vl_convert.javascript_bundle(vl_version=vega_lite_version()).replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
