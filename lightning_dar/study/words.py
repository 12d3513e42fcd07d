"""A study in Markdown, and its first paragraphs on the page."""

from collections.abc import Sequence

from lightning_dar.study.statistics import Interval
from lightning_dar.study.summary import Summary, VariantSummary

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
