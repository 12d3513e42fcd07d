"""The table of a chart: what the page shows on request, and where it looks up the values under the pointer."""

from __future__ import annotations

from html import escape

from lightning_dar.report.chart import BarChart, Chart, HeatMap, LineChart, Series
from lightning_dar.report.scale import axis_label, short


def table(chart: Chart) -> str:
    """A `<table>` with one row a value of x, category or row of the chart, in this order, and one column a series,
    group or column."""
    if isinstance(chart, LineChart):
        points = x_values(chart)
        columns = [_by_x(series) for series in chart.series]
        rows = [[column.get(x, "") for column in columns] for x in points]
        corner = axis_label(chart.x)
        return _table(corner, [series.name for series in chart.series], [short(x) for x in points], rows)
    if isinstance(chart, BarChart):
        columns = [_by_x(group) for group in chart.groups]
        rows = [[column.get(index, "") for column in columns] for index in range(len(chart.categories))]
        return _table("", [group.name for group in chart.groups], chart.categories, rows)
    rows = [[short(value) for value in values] for values in chart.values]
    return _table(f"{axis_label(chart.y)} \\ {axis_label(chart.x)}", chart.columns, chart.rows, rows)


def x_values(chart: LineChart) -> list[float]:
    """Every x of the chart's series, ascending."""
    return sorted({x for series in chart.series for x in series.x})


def value_label(chart: Chart) -> str:
    return axis_label(chart.value if isinstance(chart, HeatMap) else chart.y)


def _by_x(series: Series) -> dict[float, str]:
    if series.low is None or series.high is None:
        return {x: short(y) for x, y in zip(series.x, series.y, strict=True)}
    points = zip(series.x, series.y, series.low, series.high, strict=True)
    return {x: _with_interval(y, low, high) for x, y, low, high in points}


def _with_interval(y: float | None, low: float | None, high: float | None) -> str:
    if y is None:
        return ""
    return f"{short(y)} [-]" if low is None or high is None else f"{short(y)} [{short(low)}, {short(high)}]"


def _table(corner: str, columns: list[str], names: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for name, row in zip(names, rows, strict=True)
    )
    return f"<table><thead><tr><th>{escape(corner)}</th>{head}</tr></thead><tbody>{body}</tbody></table>"
