"""What came out of a study: means, spreads, paired differences with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from lightning_dar.diagnostics.statistics import LEVEL, MIN_UNITS, paired_intervals
from lightning_dar.study.cells import Curve, Measured, Result, SiteSharpness


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with the ends of its 95% interval; None where there are too few values for one."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The loss of a variant less that of the baseline, in nats per token; negative is better.

    Attributes:
        over_seeds: mean over the seeds that both have, Student's t interval of the paired differences.
        over_documents: for each seed, paired bootstrap over validation documents.
        wins: seeds in which the variant has the lower loss, of `seeds`.
    """

    over_seeds: Interval
    over_documents: dict[int, Interval]
    wins: int
    seeds: list[int]


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's t interval of the mean of independent values; none for a single one."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean=mean)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(LEVEL)
    return Interval(mean=mean, low=float(interval.low), high=float(interval.high))


def document_interval(measured: Measured, baseline: Measured) -> Interval:
    """Difference in mean loss per token on the same documents, which the bootstrap draws with replacement."""
    tokens = np.asarray(measured.unit_tokens, dtype=np.float64)
    differences = np.asarray(measured.unit_losses) - np.asarray(baseline.unit_losses)
    mean = float(differences.sum() / tokens.sum())
    if len(tokens) < MIN_UNITS:
        return Interval(mean=mean)
    ((low, high),) = paired_intervals(differences[None], tokens)
    return Interval(mean=mean, low=float(low), high=float(high))


def difference(variant: dict[int, Measured], baseline: dict[int, Measured]) -> Difference | None:
    """The difference between two variants, each by seed; None where they have no seed in common, or other documents."""
    seeds = sorted(seed for seed in variant if seed in baseline and _same_documents(variant[seed], baseline[seed]))
    if not seeds:
        return None
    differences = [variant[seed].loss - baseline[seed].loss for seed in seeds]
    return Difference(
        over_seeds=mean_interval(differences),
        over_documents={seed: document_interval(variant[seed], baseline[seed]) for seed in seeds},
        wins=sum(value < 0 for value in differences),
        seeds=seeds,
    )


def _same_documents(first: Measured, second: Measured) -> bool:
    return first.unit_tokens == second.unit_tokens


@dataclass(frozen=True, kw_only=True)
class Published:
    """The perplexity of the same row in the paper, and how this study's compares: match, better or worse."""

    perplexity: float
    verdict: str


@dataclass(frozen=True, kw_only=True)
class VariantSummary:
    """One variant over its finished seeds.

    Attributes:
        losses: validation loss by seed, nats per token.
        spread: standard deviation of the losses over seeds (n - 1); None for one seed.
        against_baseline: None for the baseline itself, or without a seed in common with it.
        failed: reason by seed of the cells that failed.
        sharpness: of each site, mean over seeds.
        curves: mean over seeds, at the steps that all have.
        tokens_per_second: median over seeds of each run's median.
    """

    name: str
    losses: dict[int, float]
    failed: dict[int, str]
    mean_loss: float | None = None
    spread: float | None = None
    bits_per_byte: float | None = None
    perplexity: float | None = None
    against_baseline: Difference | None = None
    published: Published | None = None
    parameters: int | None = None
    residual_parameters: int | None = None
    train_tokens: int | None = None
    train_flops: float | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None
    sharpness: list[SiteSharpness] | None = None
    curves: dict[str, Curve] | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A whole study: its variants in order, and what they have in common."""

    baseline: str
    cells: int
    finished: int
    variants: list[VariantSummary]
    identity: dict
    versions: dict[str, str]


def summarise(
    results: Sequence[Result],
    variants: Sequence[str],
    baseline: str,
    cells: int,
    published: dict[str, float] | None = None,
    tolerance: float = 0.02,
) -> Summary:
    """Brings the cells' results together.

    Args:
        results: of all cells that have ended.
        variants: names in the order to report them.
        baseline: the variant the others are compared with.
        cells: how many the whole study has.
        published: perplexity by variant name, from the paper.
        tolerance: relative difference that counts as a match with it.
    """
    finished = {name: _by_seed(results, name) for name in variants}
    rows = []
    for name in variants:
        failed = {r.seed: r.error or "" for r in results if r.variant == name and r.measured is None}
        row = _summary_of(name, finished[name], failed)
        if name != baseline and finished[name]:
            row["against_baseline"] = difference(finished[name], finished.get(baseline, {}))
        if published and name in published and "perplexity" in row:
            row["published"] = _compare(row["perplexity"], published[name], tolerance)
        rows.append(VariantSummary(**row))
    measured = [result for result in results if result.measured is not None]
    return Summary(
        baseline=baseline,
        cells=cells,
        finished=len(measured),
        variants=rows,
        identity={key: measured[0].identity[key] for key in ("data", "code", "threads")} if measured else {},
        versions=measured[0].measured.versions if measured else {},
    )


def _by_seed(results: Sequence[Result], name: str) -> dict[int, Measured]:
    return {r.seed: r.measured for r in sorted(results, key=lambda r: r.seed) if r.variant == name and r.measured}


def _summary_of(name: str, by_seed: dict[int, Measured], failed: dict[int, str]) -> dict:
    row: dict = {"name": name, "losses": {seed: m.loss for seed, m in by_seed.items()}, "failed": failed}
    if not by_seed:
        return row
    cells = list(by_seed.values())
    losses = [m.loss for m in cells]
    rates = [m.tokens_per_second for m in cells if m.tokens_per_second is not None]
    bits = [m.bits_per_byte for m in cells if m.bits_per_byte is not None]
    return row | {
        "mean_loss": float(np.mean(losses)),
        "spread": float(np.std(losses, ddof=1)) if len(losses) > 1 else None,
        "bits_per_byte": float(np.mean(bits)) if bits else None,
        "perplexity": float(np.exp(np.mean(losses))),
        "parameters": cells[0].parameters,
        "residual_parameters": cells[0].residual_parameters,
        "train_tokens": cells[0].train_tokens,
        "train_flops": cells[0].train_flops,
        "tokens_per_second": float(np.median(rates)) if rates else None,
        "seconds": float(np.mean([m.seconds for m in cells])),
        "sharpness": _mean_sharpness(cells),
        "curves": _mean_curves(cells),
    }


def _compare(perplexity: float, published: float, tolerance: float) -> Published:
    relative = perplexity / published - 1
    verdict = "match" if abs(relative) <= tolerance else "better" if relative < 0 else "worse"
    return Published(perplexity=published, verdict=verdict)


def _mean_sharpness(cells: Sequence[Measured]) -> list[SiteSharpness]:
    columns = zip(*(m.sharpness for m in cells), strict=True)
    return [
        SiteSharpness(
            site=sites[0].site,
            num_sources=sites[0].num_sources,
            sharpness=float(np.mean([site.sharpness for site in sites])),
        )
        for sites in columns
    ]


def _mean_curves(cells: Sequence[Measured]) -> dict[str, Curve]:
    curves = {}
    for name in cells[0].curves:
        by_step = [dict(zip(m.curves[name].steps, m.curves[name].values, strict=True)) for m in cells]
        steps = [step for step in cells[0].curves[name].steps if all(step in values for values in by_step)]
        curves[name] = Curve(steps=steps, values=[float(np.mean([v[step] for v in by_step])) for step in steps])
    return curves
