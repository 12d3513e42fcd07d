"""Every number of a chart reads back from its CSV as it was."""

import csv

import pytest

from lightning_dar.charts.chart import Axis, HeatMap, LineChart, Series, write_csv
from tests.charts.samples import HOSTILE, SMALL, importance, replaced, sections, sweep

THIRD = 0.1 + 0.2  # 0.30000000000000004


def rows(chart, folder) -> list[list[str]]:
    path = folder / f"{chart.name}.csv"
    write_csv(chart, path)
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_a_line_chart_reads_back(tmp_path, draw):
    chart = sweep(draw)
    header, *lines = rows(chart, tmp_path)
    assert header == ["series", "strength of the routed branch", "change in loss (nats per token)", "low", "high"]
    assert [line[0] for line in lines] == [SMALL] * 9 + [HOSTILE] * 9
    for part, column in (("x", 1), ("y", 2), ("low", 3), ("high", 4)):
        expected = [value for series in chart.series for value in getattr(series, part)]
        assert [float(line[column]) for line in lines] == expected


def test_values_without_interval_and_missing_values_leave_their_fields_empty(tmp_path):
    series = Series(name="a", x=[1, 2], y=[THIRD, None])
    axis = Axis(label="v")
    chart = LineChart(name="c", title="", caption="", x=Axis(label="site"), y=axis, series=[series])
    assert rows(chart, tmp_path)[1:] == [["a", "1", "0.30000000000000004", "", ""], ["a", "2", "", "", ""]]


def test_a_bar_chart_names_its_categories(tmp_path, draw):
    chart = replaced(draw)
    header, *lines = rows(chart, tmp_path)
    assert header == ["group", "category", "change in loss (nats per token)", "low", "high"]
    assert [line[1] for line in lines] == chart.categories * 2
    read = [[float(field) if field else None for field in line[2:]] for line in lines]
    assert read == [
        list(values) for group in chart.groups for values in zip(group.y, group.low, group.high, strict=True)
    ]


def test_a_heat_map_has_a_line_a_cell(tmp_path, draw):
    chart = importance(72, draw, "large")
    header, *lines = rows(chart, tmp_path)
    assert header == ["site", "source", "change in loss (nats per token)"]
    assert len(lines) == 73 * 73
    read = {(row, column): float(value) if value else None for row, column, value in lines}
    for row, values in zip(chart.rows, chart.values, strict=True):
        assert [read[row, column] for column in chart.columns] == values


def test_every_sample_is_written(tmp_path):
    for chart in (chart for section in sections() for chart in section.charts):
        assert rows(chart, tmp_path)[0], chart.name


def test_names_of_another_number_than_the_values_are_refused(tmp_path):
    axis = Axis(label="v")
    chart = HeatMap(
        name="c", title="", caption="", x=axis, y=axis, columns=["a"], rows=["0"], value=axis, values=[[1.0, 2.0]]
    )
    with pytest.raises(ValueError):
        write_csv(chart, tmp_path / "c.csv")
