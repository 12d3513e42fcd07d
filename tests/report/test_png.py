"""The pictures of charts: they have the right size and show what was measured."""

import matplotlib.image
import numpy as np
import pytest

from lightning_dar.report import palette
from lightning_dar.report.chart import Axis, HeatMap
from lightning_dar.report.png import DPI, WIDTH, write_png
from tests.report.samples import empty_lines, empty_map, importance, mass, one_category, replaced, sharpness, sweep


def picture(chart, folder) -> np.ndarray:
    """[height, width, 3] from 0 to 1."""
    path = folder / f"{chart.name}.png"
    write_png(chart, path)
    return matplotlib.image.imread(path)[..., :3]


def pixels_of(image: np.ndarray, colour: str) -> int:
    channels = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return int((np.abs(image - channels).max(-1) < 0.02).sum())


@pytest.mark.parametrize("make", [sharpness, sweep, replaced])
def test_lines_and_bars_show_each_series_in_its_colour(make, tmp_path, draw):
    image = picture(make(draw), tmp_path)
    assert image.shape[1] == WIDTH * DPI == 1200
    assert 300 < image.shape[0] < 1000
    for colour in palette.SERIES[:2]:
        assert pixels_of(image, colour) > 300, "more than its entry in the legend"
    assert pixels_of(image, palette.SERIES[2]) == 0


def test_a_dashed_reference_is_grey(tmp_path, draw):
    assert pixels_of(picture(sharpness(draw), tmp_path), palette.REFERENCE) > 300


@pytest.mark.parametrize("make", [mass, importance])
def test_heat_maps_of_many_sites_show_many_colours(make, tmp_path, draw):
    image = picture(make(72, draw, "large"), tmp_path)
    assert image.shape[1] == 1200
    assert 800 < image.shape[0] < 1500
    assert len(np.unique((image * 255).round() @ [65536, 256, 1])) > 200


def test_cells_have_the_colours_of_their_values(tmp_path):
    """A quarter of the cells each: the ends of a diverging scale, zero, and nothing measured."""
    axis, values = Axis(label="v"), [[-1.0, 1.0], [0.0, None]]
    settings = {"columns": ["a", "b"], "rows": ["0", "1"], "value": axis, "values": values, "diverging": True}
    image = picture(HeatMap(name="c", title="t", caption="", x=axis, y=axis, **settings), tmp_path)
    low, zero, high = palette.BLUE_RED[0], palette.BLUE_RED[5], palette.BLUE_RED[-1]
    areas = [pixels_of(image, colour) for colour in (low, zero, high)]
    assert min(areas) > 0.1 * image.shape[0] * image.shape[1]
    assert max(areas) < 1.2 * min(areas)


@pytest.mark.parametrize("chart", [empty_lines(), empty_map(), one_category()], ids=lambda chart: chart.name)
def test_little_or_nothing_to_draw_is_drawn(chart, tmp_path):
    image = picture(chart, tmp_path)
    assert image.shape[1] == 1200
    assert image.std() > 0.01, "not blank: at least it says that there is nothing"
