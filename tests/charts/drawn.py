"""What Vega makes of a chart: its marks as SVG."""

import re
from xml.etree import ElementTree

import vl_convert

from lightning_dar.charts.page import vega_lite_version
from lightning_dar.charts.vega import CONFIG, vega_lite


def marks(chart, kind: str) -> list[dict[str, str]]:
    """Attributes of the marks of a kind, such as "line" or "rect", in the order of the layers."""
    svg = vl_convert.vegalite_to_svg(vega_lite(chart, width=600), vl_version=vega_lite_version(), config=CONFIG)
    groups = [group for group in ElementTree.fromstring(svg).iter() if f"mark-{kind} " in group.get("class", "")]
    groups = [group for group in groups if "role-mark" in group.get("class")]
    return [path.attrib for group in groups for path in group if path.get("d")]


def numbers(path: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", path)]
