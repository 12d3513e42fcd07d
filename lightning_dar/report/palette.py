"""Colours that colour-blind readers can tell apart, for the PNG and for both themes of the page."""

from __future__ import annotations

from lightning_dar.report.chart import Series

# After Okabe and Ito; the dark theme's are lighter, for the same contrast.
SERIES = ("#0072b2", "#d55e00", "#008f68", "#b8578f", "#b07a00", "#3f9fd8", "#6b5bb5")
SERIES_DARK = ("#56a8e0", "#f28c4a", "#35c198", "#e59ac4", "#e0b040", "#9ad4f5", "#ab9df0")
REFERENCE, REFERENCE_DARK = "#6b7280", "#9aa3af"

LEVELS = 65  # of a heat map; odd, so that zero has a colour of its own in a diverging one
VIRIDIS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
# Larger is farther from the page's colour, in either theme.
BLUE_RED = (
    *("#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0"),
    "#f5f5f5",
    *("#fddbc7", "#f4a582", "#d6604d", "#b2182b", "#67001f"),
)
BLUE_RED_DARK = (
    *("#b9dcff", "#7dbdf5", "#4a98dd", "#2f6ea8", "#264a6b"),
    "#272b31",
    *("#6b3a2e", "#a8513a", "#dd7450", "#f5a07d", "#ffd3bd"),
)


def blend(anchors: tuple[str, ...], levels: int) -> list[str]:
    """`levels` colours, evenly spaced along the straight lines between `anchors`."""
    colours = []
    for level in range(levels):
        at = level * (len(anchors) - 1) / (levels - 1)
        left = min(int(at), len(anchors) - 2)
        pair = zip(_channels(anchors[left]), _channels(anchors[left + 1]), strict=True)
        colours.append("#" + "".join(f"{round(a + (at - left) * (b - a)):02x}" for a, b in pair))
    return colours


def series_colours(series: list[Series]) -> list[int | None]:
    """A colour's number for each series, None for the grey of a reference.

    A lone dashed series is a reference of all others; several are one each, in the order of the solid ones.
    """
    references = sum(one.dashed for one in series)
    counts = {True: 0, False: 0}
    numbers: list[int | None] = []
    for one in series:
        numbers.append(None if one.dashed and references == 1 else counts[one.dashed] % len(SERIES))
        counts[one.dashed] += 1
    return numbers


def _channels(colour: str) -> list[int]:
    return [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
