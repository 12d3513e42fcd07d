"""Ranges, rounding and the ends of colours."""

import math

import pytest

from lightning_dar.charts.chart import Axis, HeatMap, Series, short
from lightning_dar.charts.vega import colour_scale, value_range


def test_a_range_holds_every_value_and_interval():
    series = Series(name="a", x=[0, 1, 2], y=[5.0, None, 6.0], low=[4.5, None, math.nan], high=[5.5, None, 7.0])
    low, high = value_range([series])
    assert 4.3 < low < 4.5
    assert 7.0 < high < 7.2
    assert value_range([series], include_zero=True)[0] == 0
    assert value_range([Series(name="a", x=[0, 1], y=[0.2, 1.0])])[0] == 0, "close enough to zero to show it"
    assert value_range([Series(name="a", x=[0, 1], y=[0.25, 0.25])]) == pytest.approx((0.225, 0.275))


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
    assert heat_map([[0.123], [0.5], [None]]).colour_limits() == (0, 0.5)
    assert heat_map([[0.123], [-0.501]], diverging=True).colour_limits() == (-0.51, 0.51)
    assert heat_map([[0.123], [0.5]], limits=(0.0, 1.0)).colour_limits() == (0, 1)
    assert heat_map([[None]]).colour_limits() == (0, 1)
    assert heat_map([[0.0], [0.0]]).colour_limits() == (0, 1)


def test_a_few_large_cells_do_not_take_all_colours():
    chart = heat_map([*([[0.01]] * 99), [5.0]], diverging=True)
    assert chart.colour_limits() == (-0.01, 0.01)
    assert chart.clipped() == (False, True)
    assert heat_map([[0.01], [0.02]]).clipped() == (False, False)


def test_colours_by_the_square_root_tell_small_weights_apart():
    """A weight of 1/16 has the colour that 1/4 has on a linear scale."""
    values, colours = colour_scale(heat_map([[1.0]], limits=(0.0, 1.0), root=True))
    linear, same = colour_scale(heat_map([[1.0]], limits=(0.0, 1.0)))
    assert colours == same
    assert values[linear.index(0.25)] == 1 / 16
    assert (values[0], values[-1]) == (0, 1)
