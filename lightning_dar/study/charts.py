"""The charts of a study: nothing here measures, every number is one of the summary's."""

from collections.abc import Sequence

from lightning_dar.charts.chart import Axis, BarChart, Chart, LineChart, Section, Series
from lightning_dar.study.summary import Summary, VariantSummary

NATS = "nats per token"


def sections_of(summary: Summary) -> list[Section]:
    """Differences first, then how they came about; sections with nothing to show are left out."""
    trained = [variant for variant in summary.variants if variant.mean_loss is not None]
    compared = [variant for variant in trained if variant.against_baseline is not None]
    routed = [variant for variant in trained if variant.sharpness]
    sections = []
    if compared:
        text = "Cells of one seed share data order and initial weights, so what makes a seed hard cancels."
        charts: list[Chart] = [_over_seeds(summary, compared), _over_documents(summary, compared)]
        sections.append(Section(heading=f"Loss against {summary.baseline}", text=text, charts=charts))
    if trained:
        sections.append(Section(heading="Training", text="Means over seeds.", charts=_curves(trained)))
    if routed:
        text = (
            "Sharpness is the mean over tokens of the largest routing weight; uniform weights over n sources have 1/n."
        )
        sections.append(Section(heading="Routing", text=text, charts=[_sharpness(variant) for variant in routed]))
    if trained:
        text = "What a variant adds in parameters, and the throughput of these runs on the machine that ran them."
        sections.append(Section(heading="Cost", text=text, charts=_costs(trained)))
    return sections


def _over_seeds(summary: Summary, variants: Sequence[VariantSummary]) -> BarChart:
    intervals = [variant.against_baseline.over_seeds for variant in variants]
    return BarChart(
        name="difference",
        title=f"Validation loss less that of {summary.baseline}",
        caption="Mean over seeds; negative is better. Whiskers: 95% interval (Student's t) of the paired differences.",
        categories=[variant.name for variant in variants],
        y=Axis(label="difference in loss", unit=NATS),
        groups=[_bars("mean over seeds", intervals)],
    )


def _over_documents(summary: Summary, variants: Sequence[VariantSummary]) -> BarChart:
    seeds = sorted({seed for variant in variants for seed in variant.against_baseline.over_documents})
    by_seed = [
        _bars(f"seed {seed}", [variant.against_baseline.over_documents.get(seed) for variant in variants])
        for seed in seeds
    ]
    return BarChart(
        name="difference_by_seed",
        title="The same, seed by seed",
        caption="Whiskers: 95% interval over validation documents (paired bootstrap), for the networks of a seed.",
        categories=[variant.name for variant in variants],
        y=Axis(label="difference in loss", unit=NATS),
        groups=by_seed,
    )


def _bars(name: str, intervals: Sequence) -> Series:
    return Series(
        name=name,
        x=[float(index) for index in range(len(intervals))],
        y=[interval and interval.mean for interval in intervals],
        low=[interval and interval.low for interval in intervals],
        high=[interval and interval.high for interval in intervals],
    )


def _curves(variants: Sequence[VariantSummary]) -> list[Chart]:
    charts: list[Chart] = []
    for name, title in (("val/loss", "Validation loss"), ("train/loss", "Training loss")):
        series = [
            Series(name=variant.name, x=[float(s) for s in curve.steps], y=list(curve.values))
            for variant in variants
            if (curve := variant.curves.get(name)) is not None
        ]
        if series:
            charts.append(
                LineChart(
                    name=name.replace("/", "_"),
                    title=title,
                    caption="Mean over seeds, by optimizer step.",
                    x=Axis(label="optimizer step"),
                    y=Axis(label="loss", unit=NATS),
                    series=series,
                )
            )
    return charts


def _sharpness(variant: VariantSummary) -> LineChart:
    sites = [float(site.site) for site in variant.sharpness]
    return LineChart(
        name=f"sharpness_{variant.name}",
        title=f"Sharpness by depth: {variant.name}",
        caption="On validation text, mean over seeds. Dashed: 1/n, uniform weights over the n sources of the site.",
        x=Axis(label="site"),
        y=Axis(label="sharpness"),
        series=[
            Series(name="sharpness", x=sites, y=[site.sharpness for site in variant.sharpness]),
            Series(name="uniform, 1/n", x=sites, y=[1 / site.num_sources for site in variant.sharpness], dashed=True),
        ],
    )


def _costs(variants: Sequence[VariantSummary]) -> list[Chart]:
    names = [variant.name for variant in variants]
    index = [float(number) for number in range(len(variants))]
    return [
        BarChart(
            name="parameters",
            title="Parameters of the residual",
            caption="What each variant adds to the network.",
            categories=names,
            y=Axis(label="parameters"),
            groups=[Series(name="residual", x=index, y=[variant.residual_parameters for variant in variants])],
        ),
        BarChart(
            name="throughput",
            title="Throughput",
            caption="Median over each run, then over seeds; comparable only where the machine did nothing else.",
            categories=names,
            y=Axis(label="throughput", unit="tokens per second"),
            groups=[Series(name="training", x=index, y=[variant.tokens_per_second for variant in variants])],
        ),
    ]
