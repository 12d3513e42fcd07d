"""The report of a study: one page, tables, charts."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lightning_dar.charts import page
from lightning_dar.charts.chart import Axis, BarChart, Chart, LineChart, Section, Series
from lightning_dar.errors import UsageError
from lightning_dar.study.cells import Result, read_result, refuse_to_mix
from lightning_dar.study.matrix import Cell, StudyConfig
from lightning_dar.study.summary import Interval, Summary, VariantSummary, summarise
from lightning_dar.text.manifest import read_json

HEAD = (
    "variant",
    "seeds",
    "loss",
    "spread",
    "bits per byte",
    "against baseline, 95% over seeds",
    "95% over documents, by seed",
    "wins",
    "parameters",
    "tokens per second",
)


def markdown_table(summary: Summary) -> str:
    """One row for each variant, in Markdown; losses in nats per token, negative differences are better."""
    compared = any(variant.published for variant in summary.variants)
    head = [*HEAD, *(["published perplexity", "this study's", "verdict"] if compared else [])]
    rows = [head, ["---"] * len(head), *(_row(variant, compared) for variant in summary.variants)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"


def lead(summary: Summary) -> str:
    """What was run, and what came out, in two paragraphs."""
    trained = [variant for variant in summary.variants if variant.mean_loss is not None]
    if not trained:
        return "No cell has finished yet."
    first = trained[0]
    text = (
        f"{summary.finished} of {summary.cells} cells have finished. Each is one training run of "
        f"{first.train_tokens:,} tokens; cells of one seed see the same batches and start from the same weights where "
        f"they have the same parts."
    )
    return f"{text}\n\n{_findings(summary)}"


def failures(summary: Summary) -> list[str]:
    """A line for each cell that failed."""
    return [
        f"{variant.name}, seed {seed}: {reason}"
        for variant in summary.variants
        for seed, reason in variant.failed.items()
    ]


def _findings(summary: Summary) -> str:
    compared = [variant for variant in summary.variants if variant.against_baseline]
    better = [v.name for v in compared if _below_zero(v.against_baseline.over_seeds)]
    worse = [v.name for v in compared if _above_zero(v.against_baseline.over_seeds)]
    open_ = [v.name for v in compared if v.name not in {*better, *worse}]
    parts = [
        f"{kind}: {', '.join(names)}."
        for kind, names in (
            (f"Better than {summary.baseline}, the 95% interval over seeds below zero", better),
            (f"Worse than {summary.baseline}, the interval above zero", worse),
            ("Not told apart by these seeds", open_),
        )
        if names
    ]
    return " ".join(parts) or "Nothing is compared yet."


def _row(variant: VariantSummary, compared: bool) -> list[str]:
    failed = f", {len(variant.failed)} failed" if variant.failed else ""
    against = variant.against_baseline
    row = [
        variant.name,
        f"{len(variant.losses)}{failed}",
        _number(variant.mean_loss, ".4f"),
        _number(variant.spread, ".4f"),
        _number(variant.bits_per_byte, ".4f"),
        with_interval(against.over_seeds) if against else "",
        "; ".join(map(with_interval, against.over_documents.values())) if against else "",
        f"{against.wins} of {len(against.seeds)}" if against else "",
        _number(variant.parameters, ",d"),
        _number(variant.tokens_per_second, ",.0f"),
    ]
    if compared:
        published = variant.published
        row += [_number(published and published.perplexity, ".2f"), _number(variant.perplexity, ".2f")]
        row.append(published.verdict if published else "")
    return row


def with_interval(interval: Interval) -> str:
    """`+0.0123 [-0.0010, +0.0256]`; without an interval the mean alone."""
    if interval.low is None or interval.high is None:
        return f"{interval.mean:+.4f}"
    return f"{interval.mean:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _below_zero(interval: Interval) -> bool:
    return interval.high is not None and interval.high < 0


def _above_zero(interval: Interval) -> bool:
    return interval.low is not None and interval.low > 0


def counted_failures(lines: Sequence[str]) -> str:
    return "" if not lines else "\nFailed cells:\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"


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


PAPER_NUMBERS = Path("docs/paper_numbers.json")


def write_report(study: StudyConfig, cells: Sequence[Cell]) -> Summary:
    """Writes the report of all cells that have ended into the study's folder.

    Raises:
        UsageError: no cell has ended, or cells of other data, code or threads than the others.
        DataError: a damaged result.
    """
    results = [read_result(cell.result_path) for cell in cells if cell.result_path.exists()]
    if not results:
        raise UsageError(f"output={study.output}: no cell of the study has ended yet; run it without --report first")
    _refuse_mixture(results)
    summary = summarise(
        results, list(study.variants), study.baseline, len(cells), _published(study.published), study.tolerance
    )
    output, content = Path(study.output), asdict(summary)
    (output / "results.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    text = markdown_table(summary) + counted_failures(failures(summary))
    (output / "table.md").write_text(text, encoding="utf-8")
    page.write_report(output, f"Study: {output.name}", lead(summary), sections_of(summary), content)
    return summary


def _refuse_mixture(results: Sequence[Result]) -> None:
    """Settings differ between variants by design, and data between those that change them; code and threads never."""
    first = results[0]
    for result in results[1:]:
        shared = [{key: each.identity[key] for key in ("code", "threads")} for each in (first, result)]
        refuse_to_mix(result.name, *shared)


def _published(scale: str | None) -> dict[str, float] | None:
    if scale is None:
        return None
    numbers = read_json(PAPER_NUMBERS)["validation_perplexity"]
    if scale not in numbers:
        raise UsageError(f"published={scale}: {PAPER_NUMBERS} has {', '.join(numbers)}")
    return numbers[scale]
