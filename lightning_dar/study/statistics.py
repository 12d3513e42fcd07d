"""How sure is a difference between two variants? Over seeds, and over validation documents."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from lightning_dar.diagnostics.bootstrap import LEVEL, MIN_UNITS, paired_intervals
from lightning_dar.study.result import Measured


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
