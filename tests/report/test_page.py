"""The page as a file: what it holds, that it asks for nothing, and that no name can become markup."""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from lightning_dar.report.chart import Axis, BarChart, HeatMap, LineChart, Section, Series
from lightning_dar.report.figure import figure
from lightning_dar.report.page import write_page
from lightning_dar.report.scale import short
from tests.report.samples import HOSTILE, SMALL, data, empty_lines, importance, replaced, sections, sharpness, sweep

LEAD = "Sharp at first.\n\nIs a < b & c?"


class Page(HTMLParser):
    """Elements with their attributes and own text, in order."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict, list[str]]] = []
        self._open: list[list[str]] = [[]]
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))
        if tag not in ("meta", "link", "path"):
            self._open.append(self.elements[-1][2])

    def handle_endtag(self, tag):
        if tag != "path":
            self._open.pop()

    def handle_data(self, text):
        self._open[-1].append(text)

    def all(self, tag: str, **attributes) -> list[str]:
        """Texts of the elements with these attributes."""
        return ["".join(text) for name, has, text in self.elements if name == tag and attributes.items() <= has.items()]

    def paths(self, css: str) -> list[str]:
        return [has["d"] for name, has, _ in self.elements if name == "path" and css in has.get("class", "").split()]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Page:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(path, f"Routing of {HOSTILE}", LEAD, sections(), data())
    return Page(path.read_text(encoding="utf-8"))


def test_the_json_is_the_data_at_full_precision(page):
    (text,) = page.all("script", id="report")
    assert json.loads(text) == data()
    assert "</" not in text


def test_names_stay_text(page):
    tags = [name for name, _, _ in page.elements]
    assert tags.count("script") == 2, "the data and our own"
    assert not {"b", "em"} & set(tags)
    assert page.all("h1") == page.all("title") == [f"Routing of {HOSTILE}"]
    assert any(HOSTILE in text for text in page.all("dd"))
    labels = [has["aria-label"] for name, has, _ in page.elements if name == "div" and "aria-label" in has]
    assert any(HOSTILE in label for label in labels)


def test_the_page_asks_for_nothing(page):
    for name, has, text in page.elements:
        for attribute in ("src", "href", "srcset", "action", "poster"):
            assert has.get(attribute, "#").startswith(("#", "data:,")), (name, has)
        if name in ("style", "script"):
            assert not re.search(r"url\(|@import|https?:|fetch|XMLHttp|import\(", "".join(text))


def test_it_opens_with_the_lead_and_ends_with_how_it_was_made(page):
    paragraphs = page.all("p")
    assert paragraphs[:2] == ["Sharp at first.", "Is a < b & c?"]
    entries = dict(zip(page.all("dt"), page.all("dd"), strict=True))
    assert entries["windows.tokens"] == "1024"
    assert entries["ckpt_path"] == f"{SMALL}, {HOSTILE}"
    assert entries["torch"] == "2.9.0"


def test_not_a_number_is_refused(tmp_path):
    with pytest.raises(ValueError):
        write_page(tmp_path / "report.html", "t", "l", [], {"loss": math.nan})


def test_the_table_has_every_value(draw):
    chart = importance(72, draw, "large")
    page = Page(figure(chart))
    assert page.all("td") == [short(value) for row in chart.values for value in row]
    assert page.all("th", scope="row") == chart.rows
    assert page.all("th", scope="col") == chart.columns


def test_tables_show_intervals_and_leave_gaps(draw):
    chart = replaced(draw)
    cells = Page(figure(chart)).all("td")
    group = chart.groups[0]
    assert cells[0] == f"{short(group.y[0])} [{short(group.low[0])}, {short(group.high[0])}]"
    assert cells[-2:] == ["", ""]
    lines = sharpness(draw)
    assert len(Page(figure(lines)).all("td")) == 71 * len(lines.series), "every x of any series"


def test_a_line_breaks_where_there_is_no_value(draw):
    chart = sharpness(draw)
    large = Page(figure(chart)).paths("series-1")
    line = next(path for path in large if path.count("L") > 50 and "Z" not in path)
    assert line.count("M") == 3
    assert sum(len(part.split("L")) for part in line.split("M")[1:]) == sum(y is not None for y in chart.series[1].y)
    assert len(Page(figure(chart)).paths("dashed")) == 1


def test_points_lie_at_their_places():
    series = Series(name="a", x=[0, 1, 2], y=[0.0, 1.0, 0.5], low=[0.0, 0.5, 0.5], high=[0.0, 1.0, 1.0])
    chart = LineChart(name="c", title="", caption="", x=Axis(label="x"), y=Axis(label="y"), series=[series])
    page = Page(figure(chart))
    x = [1000 * (value + 0.04) / 2.08 for value in (0, 1, 2)]  # 2% of room on either side
    y = [1000 * (1 - value / 1.04) for value in (0, 1, 0.5)]  # 4% above, none at zero
    line = next(path for path in page.paths("line"))
    assert [float(number) for number in re.findall(r"[\d.]+", line)] == pytest.approx(
        [number for point in zip(x, y, strict=True) for number in point], abs=0.05
    )
    (band,) = page.paths("band")
    corners = [float(number) for number in re.findall(r"[\d.]+", band)]
    assert corners[1::2] == pytest.approx([1000 * (1 - v / 1.04) for v in (0, 0.5, 0.5, 1, 1, 0)], abs=0.05)


def test_bars_reach_their_values_from_zero():
    group = Series(name="a", x=[0, 1], y=[-1.0, 3.0], low=[-1.5, 2.5], high=[-0.5, 3.5])
    settings = {"categories": ["p", "q"], "y": Axis(label="v"), "groups": [group]}
    page = Page(figure(BarChart(name="c", title="", caption="", **settings)))
    low, span = -1.5 - 0.2, 5.4
    place = [1000 * (value - low) / span for value in (0, -1, 3)]
    (bars,) = page.paths("bar")
    ends = [float(number) for number in re.findall(r"[MH]([\d.]+)", bars)]
    assert ends == pytest.approx([place[0], place[1], place[0], place[0], place[2], place[0]], abs=0.06)
    assert len(page.paths("whisker")) == 1


def test_cells_are_coloured_by_their_values():
    axis, values = Axis(label="v"), [[0.0, 1.0], [None, 0.5]]
    chart = HeatMap(
        name="c", title="", caption="", x=axis, y=axis, columns=["a", "b"], rows=["0", "1"], value=axis, values=values
    )
    drawn = figure(chart)
    cells = {has["d"]: has["style"] for name, has, _ in Page(drawn).elements if name == "path"}
    assert "var(--mass-64))" in drawn, "the bar ends at the colour of the largest"
    assert cells == {
        "M0 0h1v1h-1z": "fill:var(--mass-0)",
        "M1 1h1v1h-1z": "fill:var(--mass-32)",
        "M1 0h1v1h-1z": "fill:var(--mass-64)",
    }


def test_axes_have_ticks_labels_and_units(draw):
    page = Page(figure(sweep(draw)))
    assert page.all("p", **{"class": "y-label"}) == ["change in loss (nats per token)"]
    assert page.all("p", **{"class": "x-label"}) == ["strength of the routed branch"]
    ticks = page.all("span")
    assert {"0.00", "0.25", "2.00"} <= set(ticks)


def test_a_chart_of_nothing_says_so():
    page = Page(figure(empty_lines()))
    assert "Nothing was measured." in page.all("p")
    assert not page.all("svg")


def test_sections_without_charts_are_possible(tmp_path):
    write_page(tmp_path / "p.html", "t", "", [Section(heading="No routing", text="None routes.", charts=[])], {})
    assert "No routing" in Page((tmp_path / "p.html").read_text()).all("h2")
