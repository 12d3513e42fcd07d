"""Ranges, ticks, rounding and the ends of colours."""

import math

import pytest

from lightning_dar.report.chart import Axis, HeatMap, Series
from lightning_dar.report.scale import (
    clipped,
    colour_limits,
    lone_points,
    short,
    tick_labels,
    ticks,
    value_range,
)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 1, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-0.13, 0.38, ["0.0", "0.2"]),
        (0.96, 1.04, ["0.96", "0.98", "1.00", "1.02", "1.04"]),
        (4.7, 4.71, ["4.700", "4.702", "4.704", "4.706", "4.708", "4.710"]),
        (0, 0.00004, ["0", "1e-05", "2e-05", "3e-05", "4e-05"]),
    ],
)
def test_ticks_are_round_and_their_labels_tell_them_apart(low, high, labels):
    assert tick_labels(ticks(low, high)) == labels


def test_whole_ticks_are_integers():
    assert ticks(0.5, 3.5, most=10, whole=True) == [1, 2, 3]
    assert ticks(0, 72, most=10, whole=True) == [0, 10, 20, 30, 40, 50, 60, 70]


def test_a_range_holds_every_value_and_interval():
    series = Series(name="a", x=[0, 1, 2], y=[5.0, None, 6.0], low=[4.5, None, math.nan], high=[5.5, None, 7.0])
    low, high = value_range([series])
    assert 4.3 < low < 4.5
    assert 7.0 < high < 7.2
    assert value_range([series], include_zero=True)[0] == 0
    assert value_range([Series(name="a", x=[0, 1], y=[0.2, 1.0])])[0] == 0, "close enough to zero to show it"
    assert value_range([Series(name="a", x=[0, 1], y=[0.25, 0.25])]) == pytest.approx((0.225, 0.275))
    assert value_range([Series(name="a", x=[0], y=[None])]) == (0, 1)


def test_only_points_without_a_neighbour_are_lone():
    assert lone_points(Series(name="a", x=list(range(6)), y=[1.0, None, 1.0, 1.0, math.inf, 2.0])) == [0, 5]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0"),
        (72, "72"),
        (4.711412345, "4.7114"),
        (-0.0312, "-0.0312"),
        (0.000012345, "1.234e-05"),
        (110.98765, "110.9877"),
        (1234567.8, "1,234,567.8"),
        (math.nan, "nan"),
    ],
)
def test_values_for_people_are_short(value, text):
    assert short(value) == text


def heat_map(values: list, **settings) -> HeatMap:
    axis = Axis(label="v")
    names = [str(number) for number in range(len(values))]
    return HeatMap(
        name="c", title="", caption="", x=axis, y=axis, columns=["a"], rows=names, value=axis, values=values, **settings
    )


def test_colours_span_the_values_from_zero_or_about_it():
    assert colour_limits(heat_map([[0.123], [0.5], [None]])) == (0, 0.5)
    assert colour_limits(heat_map([[0.123], [-0.501]], diverging=True)) == (-0.51, 0.51)
    assert colour_limits(heat_map([[0.123], [0.5]], limits=(0.0, 1.0))) == (0, 1)
    assert colour_limits(heat_map([[None]])) == (0, 1)
    assert colour_limits(heat_map([[0.0], [0.0]])) == (0, 1)


def test_a_few_large_cells_do_not_take_all_colours():
    chart = heat_map([*([[0.01]] * 99), [5.0]], diverging=True)
    assert colour_limits(chart) == (-0.01, 0.01)
    assert clipped(chart) == (False, True)
    assert clipped(heat_map([[0.01], [0.02]])) == (False, False)
