"""The page as a file: what it holds, that it asks for nothing, and that no name can become markup."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lightning_dar.charts.chart import HeatMap, Section, is_measured, series_of, short, table_of
from lightning_dar.charts.page import write_report
from tests.charts.samples import HOSTILE, SMALL, data, importance, replaced, sections, sharpness

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
        if tag not in ("meta", "link", "img"):
            self._open.append(self.elements[-1][2])

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, text):
        self._open[-1].append(text)

    def all(self, tag: str, **attributes) -> list[str]:
        """Texts of the elements with these attributes."""
        return ["".join(text) for name, has, text in self.elements if name == tag and attributes.items() <= has.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_report(folder, f"Routing of {HOSTILE}", LEAD, sections(), data())
    return folder


@pytest.fixture(scope="module")
def page(folder) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_every_chart_has_its_files(folder):
    names = {chart.name for section in sections() for chart in section.charts}
    assert {path.name for path in folder.iterdir()} == {
        "report.html",
        *(f"{name}.{kind}" for name in names for kind in ("csv", "png")),
    }


def test_the_json_is_the_data_at_full_precision(page):
    (text,) = page.all("script", id="report")
    assert json.loads(text) == data()
    assert "</" not in text


def test_names_stay_text(page):
    tags = [name for name, _, _ in page.elements]
    assert tags.count("script") == 4, "the data, the charts, Vega and our own"
    assert not {"b", "em"} & set(tags)
    assert page.all("h1") == page.all("title") == [f"Routing of {HOSTILE}"]
    assert any(HOSTILE in text for text in page.all("dd"))
    labels = [has["aria-label"] for name, has, _ in page.elements if name == "div" and "aria-label" in has]
    assert any(HOSTILE in label for label in labels)


def test_the_page_asks_for_nothing(page):
    for name, has, text in page.elements:
        for attribute in ("src", "href", "srcset", "action", "poster"):
            assert has.get(attribute, "#").startswith(("#", "data:,", "data:image/png;base64,")), (name, has)
        if name in ("style", "script") and len("".join(text)) < 500_000:  # what Vega does is seen in a browser
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
        write_report(tmp_path, "t", "l", [], {"loss": math.nan})


def test_every_chart_has_a_table_with_every_value(page):
    tables = [table_of(chart) for section in sections() for chart in section.charts]
    assert page.all("td") == [cell for table in tables for row in table.cells for cell in row]
    assert page.all("th", scope="row") == [name for table in tables for name in table.names]
    assert page.all("th", scope="col") == [name for table in tables for name in table.columns]


def test_tables_show_intervals_and_leave_gaps(draw):
    chart = replaced(draw)
    cells = table_of(chart).cells
    group = chart.groups[0]
    assert cells[0][0] == f"{short(group.y[0])} [{short(group.low[0])}, {short(group.high[0])}]"
    assert cells[-1] == ["", ""]
    lines = sharpness(draw)
    assert [len(row) for row in table_of(lines).cells] == [len(lines.series)] * 71, "every x of any series"
    cells = table_of(importance(72, draw, "large"))
    assert (len(cells.cells), len(cells.cells[0])) == (73, 73)


def test_charts_are_given_to_the_script_and_said_to_be_empty_where_they_are(page):
    (text,) = page.all("script", id="charts")
    drawn = [chart for section in sections() for chart in section.charts if is_measured(chart)]
    assert list(json.loads(text)["specifications"]) == [chart.name for chart in drawn]
    assert [has["data-chart"] for name, has, _ in page.elements if "data-chart" in has] == [c.name for c in drawn]
    assert page.all("p").count("Nothing was measured.") == 2
    assert len(drawn) == 9


def test_names_in_the_legend_are_those_of_the_series(page):
    shown = [item for item in page.all("li") if item in (SMALL, HOSTILE, "uniform, 1/n", "<em>only</em>")]
    charts = [chart for section in sections() for chart in section.charts if is_measured(chart)]
    named = [chart for chart in charts if not isinstance(chart, HeatMap)]
    assert shown == [series.name for chart in named for series in series_of(chart)]


def test_sections_without_charts_are_possible(tmp_path):
    write_report(tmp_path, "t", "", [Section(heading="No routing", text="None routes.", charts=[])], {})
    assert "No routing" in Page((tmp_path / "report.html").read_text()).all("h2")
