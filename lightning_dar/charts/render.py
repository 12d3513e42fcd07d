"""Charts as PNG, and several as one picture."""

from __future__ import annotations

import io
import textwrap
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lightning_dar.charts.chart import Chart
from lightning_dar.charts.look import CONFIG
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
