"""The report as one self-contained HTML file: it asks nothing of the network, and reads without JavaScript.

Charts are drawn here, as SVG; `page.js` adds the values under the pointer and the switch of themes, and looks the
values up in the charts' tables. `page.css` has the layout, and this file its colours.
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from lightning_dar.report import palette
from lightning_dar.report.chart import Section
from lightning_dar.report.figure import figure

LISTED = ("settings", "data", "versions")

# Nothing may be loaded, whatever a name in the report contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def write_page(path: str | Path, title: str, lead: str, sections: list[Section], data: dict[str, Any]) -> None:
    """Writes `sections` to the HTML file `path`, under `title` and `lead`, whose paragraphs are parted by blank lines.

    `data` is embedded as JSON, every number at full precision, in `<script type="application/json" id="report">`. Its
    entries "settings", "data" and "versions", where there are such, are listed at the end.

    Raises:
        ValueError: a NaN or an infinity in `data`, which JSON does not have: say None.
    """
    body = "\n".join(
        [
            _header(title, lead, sections),
            *(_section(number, section) for number, section in enumerate(sections, 1)),
            _footer(data),
        ]
    )
    Path(path).write_text(
        f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{_colours()}
{_asset("page.css")}</style>
</head>
<body>
{body}
<div id="tip" role="status" hidden></div>
<script type="application/json" id="report">{_embedded(data)}</script>
<script>
{_asset("page.js")}</script>
</body>
</html>
""",
        encoding="utf-8",
    )


def _header(title: str, lead: str, sections: list[Section]) -> str:
    paragraphs = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in lead.split("\n\n") if paragraph.strip())
    links = "".join(
        f'<li><a href="#section-{number}">{escape(section.heading)}</a></li>'
        for number, section in enumerate(sections, 1)
    )
    return (
        f'<header><div class="head"><h1>{escape(title)}</h1><button id="theme" type="button" hidden>Dark</button></div>'
        f'<div class="lead">{paragraphs}</div><nav aria-label="Sections"><ul>{links}</ul></nav></header>\n<main>'
    )


def _section(number: int, section: Section) -> str:
    charts = "\n".join(figure(chart) for chart in section.charts)
    return (
        f'<section id="section-{number}"><h2>{escape(section.heading)}</h2><p class="text">{escape(section.text)}</p>\n'
        f'<div class="charts">{charts}</div></section>'
    )


def _footer(data: dict[str, Any]) -> str:
    lists = "".join(
        f"<div><h3>{name.capitalize()}</h3><dl>{_entries(data[name])}</dl></div>" for name in LISTED if data.get(name)
    )
    return f'</main>\n<footer><h2>How this was made</h2><div class="lists">{lists}</div></footer>'


def _entries(values: dict[str, Any], prefix: str = "") -> str:
    """Terms and values, nested ones with a dot in the name."""
    entries = ""
    for name, value in values.items():
        if isinstance(value, dict):
            entries += _entries(value, f"{prefix}{name}.")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            entries += f"<dt>{escape(f'{prefix}{name}')}</dt><dd>{escape(shown)}</dd>"
    return entries


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end its own script element, nor open a comment in it."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


def _colours() -> str:
    light = _variables(palette.SERIES, palette.REFERENCE, palette.BLUE_RED)
    dark = _variables(palette.SERIES_DARK, palette.REFERENCE_DARK, palette.BLUE_RED_DARK)
    mass = _ramp("mass", palette.blend(palette.VIRIDIS, palette.LEVELS))
    classes = "".join(f".series-{n}{{--colour:var(--series-{n}-colour)}}" for n in range(len(palette.SERIES)))
    return (
        f":root{{{mass}{light}}}\n:root[data-theme=dark]{{{dark}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f"{classes}.reference{{--colour:var(--reference-colour)}}"
    )


def _variables(series: tuple[str, ...], reference: str, difference: tuple[str, ...]) -> str:
    numbered = "".join(f"--series-{number}-colour:{colour};" for number, colour in enumerate(series))
    ramp = _ramp("difference", palette.blend(difference, palette.LEVELS))
    return f"{numbered}--reference-colour:{reference};{ramp}"


def _ramp(name: str, colours: list[str]) -> str:
    return "".join(f"--{name}-{level}:{colour};" for level, colour in enumerate(colours))


def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
