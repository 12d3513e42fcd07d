"""Charts as data: one definition, from which the CSV, the PNG and the page are written, so that all show one truth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis, or the colour of a heat map, measures."""

    label: str
    unit: str = ""  # shown behind the label and behind hover values, such as "nats per token"


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart. None where there is no value; `low` and `high` bound an interval, such as 95%."""

    name: str
    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    dashed: bool = False  # a reference, such as uniform 1/n


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Series over a shared numeric x. `name` is the stem of its files."""

    name: str
    title: str
    caption: str  # one or two sentences: what is drawn, and how to read it
    x: Axis
    y: Axis
    series: list[Series]


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """A value a category, with an interval where `low` and `high` are given; `groups` are drawn side by side."""

    name: str
    title: str
    caption: str
    categories: list[str]
    y: Axis
    groups: list[Series]  # x is the index of the category


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """values[row][column], None where nothing is measured."""

    name: str
    title: str
    caption: str
    x: Axis
    y: Axis
    columns: list[str]
    rows: list[str]
    value: Axis
    values: list[list[float | None]]
    diverging: bool = False  # colours centred on zero
    limits: tuple[float, float] | None = (
        None  # values at the ends of the colours, such as (0, 1); None: from the values
    )


Chart = LineChart | BarChart | HeatMap


@dataclass(frozen=True, kw_only=True)
class Section:
    """Charts under one heading, with a sentence before them."""

    heading: str
    text: str
    charts: list[Chart]
