"""Sections as a comparison of two checkpoints fills them, with every irregularity that a chart may have."""

import math
import random

from lightning_dar.charts.chart import Axis, BarChart, HeatMap, LineChart, Section, Series

HOSTILE = 'runs/<script>alert(1)</script>/$a_b$ & "c"/last.ckpt'
SMALL, LARGE = "runs/quickstart/version_0/checkpoints/last.ckpt", HOSTILE
LOSS_CHANGE = Axis(label="change in loss", unit="nats per token")


def sections() -> list[Section]:
    draw = random.Random(0)
    return [
        Section(
            heading="How sharp is routing?",
            text="The largest routing weight, averaged over tokens, against the uniform 1/n of a collapsed routing.",
            charts=[sharpness(draw), shares(draw)],
        ),
        Section(
            heading="Where does the mass go, and does it matter?",
            text="Mean routing weight beside the change in loss when that source is knocked out at that site.",
            charts=[
                mass(8, draw, "small"),
                importance(8, draw, "small"),
                mass(72, draw, "large"),
                importance(72, draw, "large"),
            ],
        ),
        Section(
            heading="What is <em>selectivity</em> worth?",
            text="<em>Loss</em> over the strength of the routed branch, and with its weights replaced.",
            charts=[sweep(draw), replaced(draw), empty_lines(), one_category(), empty_map()],
        ),
    ]


def data() -> dict:
    """What a report's JSON holds."""
    return {
        "settings": {"ckpt_path": [SMALL, LARGE], "documents": 64, "windows": {"tokens": 1024, "stride": 1024}},
        "data": {"source": "stdlib", "fingerprint": "5d41402abc4b2a76b9719d911017c592"},
        "versions": {"lightning_dar": "0.1.0", "torch": "2.9.0"},
        "loss": {SMALL: 4.711412345678901, LARGE: None},
    }


def sharpness(draw: random.Random) -> LineChart:
    def line(name: str, sites: int, top: float, **settings) -> Series:
        y = [top * (0.35 + 0.65 * math.exp(-4 * site / sites)) + draw.uniform(-0.02, 0.02) for site in range(1, sites)]
        return Series(name=name, x=list(range(1, sites)), y=y, **settings)

    small, large = line(SMALL, 8, 0.7), line(LARGE, 72, 0.95)
    large.y[10] = large.y[12] = None
    bounds = {"low": [y and y - 0.05 for y in large.y], "high": [y and y + 0.05 for y in large.y]}
    uniform = Series(name="uniform, 1/n", x=large.x, y=[1 / (x + 1) for x in large.x], dashed=True)
    return LineChart(
        name="sharpness",
        title="Sharpness by depth",
        caption="Mean over tokens of the largest routing weight at each site; the band holds 90% of documents.",
        x=Axis(label="site"),
        y=Axis(label="largest routing weight"),
        series=[small, Series(name=large.name, x=large.x, y=large.y, **bounds), uniform],
    )


def shares(draw: random.Random) -> BarChart:
    def group(name: str) -> Series:
        y = [draw.uniform(5, 60) for _ in range(3)]
        return Series(name=name, x=[0, 1, 2], y=y)

    return BarChart(
        name="shares",
        title="Where the largest weight lies",
        caption="Share of tokens whose largest weight is on the embedding, the newest or an older source.",
        categories=["embedding", "newest source", "older source"],
        y=Axis(label="tokens", unit="%"),
        groups=[group(SMALL), group(LARGE)],
    )


def mass(sites: int, draw: random.Random, which: str) -> HeatMap:
    values: list[list[float | None]] = []
    for site in range(sites + 1):
        raw = [math.exp(draw.gauss(0, 1.5)) for _ in range(site + 1)]
        values.append([weight / sum(raw) for weight in raw] + [None] * (sites - site))
    return HeatMap(
        name=f"mass_{which}",
        title=f"Routing mass: {SMALL if which == 'small' else LARGE}",
        caption="Mean routing weight, site by source. Rows add up to 1; blank where a site has no such source.",
        x=Axis(label="source"),
        y=Axis(label="site"),
        columns=["e", *(f"y{index}" for index in range(sites))],
        rows=[*(f"{site}" for site in range(sites)), "final read"],
        value=Axis(label="mean routing weight"),
        values=values,
    )


def importance(sites: int, draw: random.Random, which: str) -> HeatMap:
    """Mostly tiny changes of either sign, and one large one, as knocking out the embedding makes."""
    template = mass(sites, draw, which)
    values = [[None if value is None else draw.gauss(0.002, 0.004) for value in row] for row in template.values]
    values[1][0] = 1.75
    values[2][1] = None
    return HeatMap(
        name=f"importance_{which}",
        title=f"Knock-out: {SMALL if which == 'small' else LARGE}",
        caption="Change in loss when one source is removed at one site and the other weights are renormalised.",
        x=template.x,
        y=template.y,
        columns=template.columns,
        rows=template.rows,
        value=LOSS_CHANGE,
        values=values,
        diverging=True,
    )


def sweep(draw: random.Random) -> LineChart:
    def line(name: str, best: float) -> Series:
        x = [step / 4 for step in range(9)]
        y = [0.6 * (scale - best) ** 2 - 0.6 * (1 - best) ** 2 for scale in x]
        room = [0.02 + 0.15 * abs(scale - 1) * draw.uniform(0.8, 1.2) for scale in x]
        low, high = [a - b for a, b in zip(y, room, strict=True)], [a + b for a, b in zip(y, room, strict=True)]
        return Series(name=name, x=x, y=y, low=low, high=high)

    return LineChart(
        name="strength",
        title="Strength of the routed branch",
        caption="Change in loss against strength 1, with a paired bootstrap 95% interval over documents.",
        x=Axis(label="strength of the routed branch"),
        y=LOSS_CHANGE,
        series=[line(SMALL, 1.1), line(LARGE, 0.8)],
    )


def replaced(draw: random.Random) -> BarChart:
    def group(name: str, first: float) -> Series:
        y = [first, 0.1234567, -0.0312, None]
        low = [value if value is None else value - draw.uniform(0.01, 0.05) for value in y]
        high = [value if value is None else value + draw.uniform(0.01, 0.05) for value in y]
        return Series(name=name, x=[0, 1, 2, 3], y=y, low=low, high=high)

    return BarChart(
        name="selectivity",
        title="Routing weights replaced",
        caption="Change in loss with a 95% interval: what token-dependent, and soft, weights are worth.",
        categories=["uniform, 1/n", "running mean of each source", "hard: the largest weight alone", "not measured"],
        y=LOSS_CHANGE,
        groups=[group(SMALL, 0.31), group(LARGE, -0.08)],
    )


def empty_lines() -> LineChart:
    series = [Series(name="standard (no routing)", x=[], y=[]), Series(name="diverged", x=[0, 1], y=[None, math.nan])]
    axis = Axis(label="cosine")
    return LineChart(
        name="redundancy",
        title="Redundancy of <em>sources</em>",
        caption="Mean <em>cosine</em>.",
        x=Axis(label="site"),
        y=axis,
        series=series,
    )


def one_category() -> BarChart:
    return BarChart(
        name="loss",
        title="Loss",
        caption="On the held-out text.",
        categories=["<b>all</b> documents"],
        y=Axis(label="<em>loss</em>", unit="<em>nats</em>"),
        groups=[Series(name="<em>only</em>", x=[0], y=[4.711412345678901], low=[4.65], high=[4.77])],
    )


def empty_map() -> HeatMap:
    axis = Axis(label="site")
    return HeatMap(
        name="nothing",
        title="An empty map",
        caption="No routed site.",
        x=axis,
        y=axis,
        columns=[],
        rows=[],
        value=axis,
        values=[],
    )
