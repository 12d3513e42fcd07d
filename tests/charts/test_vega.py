"""Where marks lie, and in which colours: as Vega draws them."""

import altair as alt
import pytest

from lightning_dar.charts.chart import Axis, BarChart, HeatMap, LineChart, Series
from lightning_dar.charts.vega import together, vega_lite
from tests.charts.drawn import marks, numbers
from tests.charts.samples import mass, sections, sharpness


def test_altair_finds_nothing_wrong_with_any_chart(draw):
    for chart in (chart for section in sections() for chart in section.charts if not chart.name.endswith("large")):
        alt.Chart.from_dict(vega_lite(chart, title={"text": chart.title}, width=600))
    alt.Chart.from_dict(vega_lite(sharpness(draw)))
    alt.Chart.from_dict(vega_lite(mass(8, draw, "small")))
    alt.Chart.from_dict(together([mass(8, draw, "small"), sharpness(draw)], "t", across=True))


def test_a_line_breaks_where_there_is_no_value(draw):
    chart = sharpness(draw)
    large = marks(chart, "line")[1]["d"]
    assert large.count("M") == 3
    assert len(numbers(large)) == 2 * sum(y is not None for y in chart.series[1].y)
    assert [line["stroke-dasharray"] for line in marks(chart, "line")] == ["1,0", "1,0", "5,4"]
    (alone,) = (mark for mark in marks(chart, "symbol") if mark["fill"] == "#d55e00")
    assert alone, "a value without neighbours has a dot, and a line of many values has no others"


@pytest.mark.parametrize("upright", [False, True])
def test_points_lie_at_their_places(upright):
    series = Series(name="a", x=[0, 1, 2], y=[0.0, 1.0, 0.5], low=[0.0, 0.5, 0.5], high=[0.0, 1.0, 1.0])
    axes = {"x": Axis(label="x"), "y": Axis(label="y")}
    chart = LineChart(name="c", title="", caption="", **axes, series=[series], upright=upright)
    (line,) = marks(chart, "line")
    x, y = numbers(line["d"])[0::2], numbers(line["d"])[1::2]
    if upright:
        x, y = y, [-value for value in x]  # x runs down, y to the right
    assert x[0] < x[1] < x[2]
    assert x[1] - x[0] == pytest.approx(x[2] - x[1])
    assert (y[0] - y[2]) / (y[0] - y[1]) == pytest.approx(0.5, abs=1e-3)
    (band,) = marks(chart, "area")
    corners = numbers(band["d"])[0::2] if upright else numbers(band["d"])[1::2]
    ends = [(abs(corner) - abs(y[0])) / (abs(y[1]) - abs(y[0])) for corner in corners]
    assert ends == pytest.approx([0, 0.5, 0.5, 1, 1, 0], abs=1e-3)


def test_bars_reach_their_values_from_zero():
    group = Series(name="a", x=[0, 1], y=[-1.0, 3.0], low=[-1.5, 2.5], high=[-0.5, 3.5])
    settings = {"categories": ["p", "q"], "y": Axis(label="v"), "groups": [group]}
    rects = marks(BarChart(name="c", title="", caption="", **settings), "rect")
    (left, _, below, *_), (zero, _, above, *_) = (numbers(bar["d"]) for bar in rects if bar["fill"] == "#0072b2")
    assert above == pytest.approx(3 * below)
    assert left + below == pytest.approx(zero)
    ends = sorted(numbers(tick["d"])[0] + 0.5 for tick in rects if tick["fill"] == "#1b1f24")
    assert [(end - zero) / below for end in ends] == pytest.approx([-1.5, -0.5, 2.5, 3.5], abs=1e-3)


def test_cells_are_coloured_by_their_values():
    axis, values = Axis(label="v"), [[0.0, 1.0], [None, 0.5]]
    settings = {"columns": ["a", "b"], "rows": ["0", "1"], "value": axis, "values": values}
    cells = marks(HeatMap(name="c", title="", caption="", x=axis, y=axis, **settings), "rect")
    assert [cell["fill"] for cell in cells] == ["rgb(68, 1, 84)", "rgb(253, 231, 37)", "rgb(33, 145, 140)"]
    (left, top, *_), (right, *_), (_, bottom, *_) = (numbers(cell["d"]) for cell in cells)
    assert left < right and top < bottom


def test_shares_lie_one_upon_the_other():
    names = ("a", "b")
    series = [Series(name=name, x=[0, 1], y=y) for name, y in zip(names, ([0.25, 0.5], [0.75, 0.5]), strict=True)]
    axes = {"x": Axis(label="x"), "y": Axis(label="y")}
    areas = marks(LineChart(name="c", title="", caption="", **axes, series=series, stacked=True), "area")
    heights = [[1 - y / 250 for y in numbers(area["d"])[1::2]] for area in areas]
    assert {round(height, 3) for height in heights[0]} == {0.5, 0.75, 1}
    assert {round(height, 3) for height in heights[1]} == {0, 0.5, 0.75}
