"""The page in headless Chromium: on a phone and on a screen, in light and dark."""

import time
from pathlib import Path

import pytest

from lightning_dar.charts.chart import short
from lightning_dar.charts.page import write_report
from tests.charts.chromium import Chromium, find_chromium
from tests.charts.samples import HOSTILE, data, sections

THEMES = pytest.mark.parametrize("theme", ["light", "dark"])
WIDTHS = pytest.mark.parametrize("width", [360, 1280])

# Boxes of all visible elements that reach beyond the window, but for what scrolls in a box of its own.
OVERFLOWING = """[...document.body.querySelectorAll('*')]
  .filter(e => !e.closest('svg') || ['svg', 'text'].includes(e.tagName))
  .filter(e => !e.closest('.scroll') && e.getBoundingClientRect().width && e.id !== 'tip')
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5 || e.getBoundingClientRect().left < -0.5)
  .map(e => e.outerHTML.slice(0, 80))"""

# Pairs of labels on one axis, both shown, that lie less than 4 pixels apart sideways.
CROWDED = """[...document.querySelectorAll('.role-axis-label')].flatMap(axis => {
  const boxes = [...axis.querySelectorAll('text')].filter(e => e.getAttribute('opacity') !== '0')
    .map(e => [e.getBoundingClientRect(), e.textContent]);
  return boxes.flatMap(([a, name], i) => boxes.slice(i + 1)
    .filter(([b]) => a.left - 4 < b.right && b.left - 4 < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom)
    .map(([, other]) => `${axis.closest('figure').id}: ${name}, ${other}`));
})"""

# The least contrast of any text with the page behind it, after WCAG: 4.5 is readable.
CONTRAST = """(() => {
  const luminance = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const page = luminance(getComputedStyle(document.body).backgroundColor);
  return Math.min(...[...document.querySelectorAll('h1, h2, h3, p, a, li, summary, dt, dd, .chart text')]
    .map(e => luminance(e.closest('svg') ? getComputedStyle(e).fill : getComputedStyle(e).color))
    .map(text => (Math.max(text, page) + 0.05) / (Math.min(text, page) + 0.05)));
})()"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if find_chromium() is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_report(folder, "Routing report", "What was found.", sections(), data())
    return folder / "report.html"


def open_page(browser: Chromium, page: Path, width: int, theme: str) -> None:
    """Returns when the charts are drawn."""
    browser.open(page, width, theme)
    deadline = time.monotonic() + 60
    while not browser.run("document.body.dataset.drawn") and time.monotonic() < deadline:
        time.sleep(0.02)


def complaints(browser: Chromium) -> list[dict]:
    """Exceptions, messages in the console, violations of the page's policy."""
    kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    return [event for event in browser.events if event["method"] in kinds]


def requests(browser: Chromium) -> list[str]:
    sent = [event for event in browser.events if event["method"] == "Network.requestWillBeSent"]
    return [event["params"]["request"]["url"] for event in sent]


def show(browser: Chromium, name: str) -> list[float]:
    """Scrolls to a chart's plot; its left, top, width and height."""
    plot = f"document.querySelector('#{name} .chart .background')"
    browser.run(f"{plot}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    settle(browser)
    return browser.run(f"(r => [r.left, r.top, r.width, r.height])({plot}.getBoundingClientRect())")


def settle(browser: Chromium) -> None:
    """Waits until two frames are drawn, so that scrolling is over and its event was seen."""
    browser.run("(window.drawn = 0, requestAnimationFrame(() => requestAnimationFrame(() => window.drawn = 1)), 0)")
    deadline = time.monotonic() + 10
    while not browser.run("window.drawn") and time.monotonic() < deadline:
        time.sleep(0.01)


def tip(browser: Chromium) -> str:
    """What the box with values says, empty where it is hidden."""
    settle(browser)
    return browser.run("(t => t.hidden ? '' : t.innerText)(document.getElementById('tip'))")


def assert_drawn(browser: Chromium) -> None:
    """Every chart that has values has an area and marks in it."""
    sizes = browser.run("""[...document.querySelectorAll('.chart')].map(chart => {
        const plot = chart.querySelector('.background').getBoundingClientRect();
        const paths = [...chart.querySelectorAll('.mark-line path, .mark-rect path')];
        const marks = paths.map(path => path.getBoundingClientRect());
        return [plot.width, plot.height, Math.max(...marks.map(mark => mark.width + mark.height))];
    })""")
    assert len(sizes) == 9
    assert min(min(width, height) for width, height, _ in sizes) > 40
    assert min(mark for _, _, mark in sizes) > 4


def find(name: str):
    return next(chart for section in sections() for chart in section.charts if chart.name == name)


@THEMES
@WIDTHS
def test_it_renders_without_complaints_and_fits(chromium, report, width, theme):
    open_page(chromium, report, width, theme)
    settle(chromium)
    assert complaints(chromium) == []
    assert [url for url in requests(chromium) if not url.startswith("data:")] == [report.as_uri()]
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert chromium.run(OVERFLOWING) == []
    assert chromium.run(CROWDED) == []

    assert_drawn(chromium)
    dark = chromium.run("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (theme == "dark")
    assert chromium.run(CONTRAST) > 4.5


@WIDTHS
def test_tables_open_without_widening_the_page(chromium, report, width):
    open_page(chromium, report, width, "light")
    chromium.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert chromium.run(OVERFLOWING) == []
    assert chromium.run("Math.min(...[...document.querySelectorAll('.scroll')].map(e => e.clientHeight))") > 20


@THEMES
def test_the_pointer_shows_values(chromium, report, theme):
    open_page(chromium, report, 1280, theme)
    chart = find("importance_large")
    left, top, width, height = show(chromium, chart.name)
    row, column = 40, 7
    x, y = left + width * (column + 0.5) / 73, top + height * (row + 0.5) / 73
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    shown = tip(chromium)
    assert short(chart.values[row][column]) in shown
    assert "site\n40" in shown and "source\ny6" in shown
    assert "change in loss (nats per token)" in shown

    chart = find("strength")
    left, top, width, height = show(chromium, chart.name)
    assert tip(chromium) == "", "scrolling away hides it"
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width * 0.52, y=top + height / 2)
    shown = tip(chromium)
    assert "strength of the routed branch\n1\n" in shown
    series = chart.series[1]
    assert f"{short(series.y[4])} [{short(series.low[4])}, {short(series.high[4])}]" in shown
    assert HOSTILE in shown

    chart = find("selectivity")
    left, top, width, height = show(chromium, chart.name)
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width / 2, y=top + height * 0.9)
    assert "not measured" in tip(chromium) and "no value" in tip(chromium)
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert tip(chromium) == ""
    assert complaints(chromium) == []


def test_a_finger_shows_values_within_the_window(chromium, report):
    open_page(chromium, report, 360, "light")
    chromium.call("Emulation.setTouchEmulationEnabled", enabled=True)
    for name, down in (("sharpness", 0.5), ("selectivity", 0.5), ("mass_large", 0.995)):
        left, top, width, height = show(chromium, name)
        for share in (0.02, 0.5, 0.98):
            at = {"x": left + share * width, "y": top + down * height}
            chromium.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[at])
            chromium.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
            assert tip(chromium), f"{name}, {share}: it stays when the finger is lifted"
            left_edge, right_edge = chromium.run("(r => [r.left, r.right])(tip.getBoundingClientRect())")
            assert left_edge >= 0 and right_edge <= 360, (name, share)
    chromium.call("Emulation.setTouchEmulationEnabled", enabled=False)


def test_the_keyboard_walks_the_values(chromium, report):
    def press(key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            chromium.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    codes = {"Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
    open_page(chromium, report, 1280, "light")
    chart = find("mass_small")
    show(chromium, chart.name)
    chromium.run("document.querySelector('#shares summary').focus({preventScroll: true})")
    press("Tab")
    settle(chromium)
    press("ArrowDown")
    assert chromium.run("document.activeElement.ariaLabel") == f"{chart.title}; arrow keys show values"
    assert short(chart.values[0][0]) in tip(chromium)
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"):
        press(key)
    shown = tip(chromium)
    assert short(chart.values[1][1]) in shown and "site\n1" in shown and "source\ny0" in shown
    press("Escape")
    assert tip(chromium) == ""

    chart = find("strength")
    show(chromium, chart.name)
    chromium.run("document.querySelector('#strength .chart').focus({preventScroll: true})")
    settle(chromium)
    for _ in range(3):
        press("ArrowRight")
    assert "strength of the routed branch\n0.5\n" in tip(chromium)


def test_the_button_switches_the_theme(chromium, report):
    open_page(chromium, report, 1280, "light")
    background = "getComputedStyle(document.body).backgroundColor"
    light = chromium.run(background)
    assert chromium.run("theme.textContent") == "Dark"
    chromium.run("theme.click()")
    assert chromium.run(background) != light
    assert chromium.run("theme.textContent") == "Light"
    chromium.run("theme.click()")
    assert chromium.run(background) == light


def test_without_scripts_the_charts_are_pictures(chromium, report):
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.open(report, 360, "light")
        sizes = chromium.run("[...document.images].map(image => [image.complete && image.naturalWidth, image.width])")
        assert len(sizes) == 9
        assert all(natural == 1200 and 300 < width <= 360 for natural, width in sizes)
        assert chromium.run("document.getElementById('theme').hidden")
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)
