"""The pictures of charts: they have the right size and show what was measured."""

import io

import numpy as np
import pytest
from PIL import Image

from lightning_dar.charts import vega
from lightning_dar.charts.chart import Axis, HeatMap
from lightning_dar.charts.page import check_drawing, picture, pixels, png
from lightning_dar.errors import UsageError
from tests.charts.samples import empty_lines, empty_map, importance, mass, one_category, replaced, sharpness, sweep


def pixels_of(image: np.ndarray, colour: str) -> int:
    channels = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)])
    return int((np.abs(image.astype(int) - channels).max(-1) < 5).sum())


@pytest.mark.parametrize("make", [sharpness, sweep, replaced])
def test_lines_and_bars_show_each_series_in_its_colour(make, draw):
    image = pixels(png(make(draw)))
    assert image.dtype == np.uint8
    assert image.shape[1:] == (1200, 3)
    assert 300 < image.shape[0] < 1000
    for colour in vega.SERIES[:2]:
        assert pixels_of(image, colour) > 300, "more than its entry in the legend"
    assert pixels_of(image, vega.SERIES[2]) == 0


def test_a_dashed_reference_is_grey(draw):
    assert pixels_of(pixels(png(sharpness(draw))), vega.REFERENCE) > 300


@pytest.mark.parametrize("make", [mass, importance])
def test_heat_maps_of_many_sites_show_many_colours(make, draw):
    image = pixels(png(make(72, draw, "large")))
    assert image.shape[1] == 1200
    assert 800 < image.shape[0] < 1500
    assert len(np.unique(image @ [65536, 256, 1])) > 200


def test_cells_have_the_colours_of_their_values():
    """A quarter of the cells each: the ends of a diverging scale, zero, and nothing measured."""
    axis, values = Axis(label="v"), [[-1.0, 1.0], [0.0, None]]
    settings = {"columns": ["a", "b"], "rows": ["0", "1"], "value": axis, "values": values, "diverging": True}
    image = pixels(png(HeatMap(name="c", title="t", caption="", x=axis, y=axis, **settings)))
    low, zero, high = vega.BLUE_RED[0], vega.BLUE_RED[5], vega.BLUE_RED[-1]
    areas = [pixels_of(image, colour) for colour in (low, zero, high)]
    assert min(areas) > 0.1 * image.shape[0] * image.shape[1]
    assert max(areas) < 1.2 * min(areas)


@pytest.mark.parametrize("chart", [empty_lines(), empty_map(), one_category()], ids=lambda chart: chart.name)
def test_little_or_nothing_to_draw_is_drawn(chart):
    image = pixels(png(chart))
    assert image.shape[1] == 1200
    assert image.std() > 2.5, "not blank: at least it says that there is nothing"


def test_several_charts_are_one_picture_and_the_same_bytes_each_time(draw):
    charts = [mass(8, draw, "small"), sharpness(draw)]
    both = picture(charts, "step 7", across=True)
    assert both == picture(charts, "step 7", across=True)
    (wide, low), (narrow, high) = (
        Image.open(io.BytesIO(picture(charts, "t", across))).size for across in (True, False)
    )
    assert wide > narrow and high > low
    assert pixels_of(pixels(both), vega.SERIES[0]) > 300


def test_a_missing_package_is_named_in_a_line(monkeypatch):
    check_drawing()
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(UsageError, match="charts need the package vl-convert-python: pip install vl-convert-python"):
        check_drawing()
