"""Charts drawn: PNG pictures, and one self-contained page."""

from __future__ import annotations

import base64
import io
import json
import textwrap
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_dar.charts.chart import Chart, HeatMap, Section, Series, is_measured, series_of, table_of, write_csv
from lightning_dar.charts.vega import CONFIG, DARK, series_colours
from lightning_dar.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

WIDTH, SCALE = 600, 2.0  # units, pixels per unit
NEEDED = {"altair": "altair", "vl_convert": "vl-convert-python"}


def check_drawing() -> None:
    """Raises UsageError where a package that draws is missing: before work whose pictures could not be drawn."""
    for module, package in NEEDED.items():
        if find_spec(module) is None:
            raise UsageError(f"charts need the package {package}: pip install {package}")


def png(chart: Chart) -> bytes:
    """The chart, 1200 pixels wide, under its title and caption."""
    from lightning_dar.charts.vega import vega_lite

    title = {"text": textwrap.wrap(chart.title, 80), "subtitle": textwrap.wrap(chart.caption, 105), "frame": "bounds"}
    return _drawn(vega_lite(chart, title=title, width=WIDTH))


def picture(charts: list[Chart], title: str, across: bool = False) -> bytes:
    """Several charts as one PNG, below one another or, `across`, side by side."""
    from lightning_dar.charts.vega import together

    return _drawn(together(charts, title, across))


def pixels(png: bytes) -> np.ndarray:
    """uint8 [height, width, 3], for loggers that take images."""
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)))


def vega_lite_version() -> str:
    """The one that Altair speaks, such as 6.1."""
    from altair import SCHEMA_VERSION

    return ".".join(SCHEMA_VERSION.lstrip("v").split(".")[:2])


def _drawn(specification: dict[str, Any]) -> bytes:
    import vl_convert
    from PIL import Image

    png = vl_convert.vegalite_to_png(specification, vl_version=vega_lite_version(), scale=SCALE, config=CONFIG)
    smaller = io.BytesIO()  # a fifth of what vl-convert writes
    Image.open(io.BytesIO(png)).convert("RGB").save(smaller, "PNG")
    return smaller.getvalue()


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
