"""What an inspection has found. `report.json` holds these fields by the same names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A change in loss, in nats per token, with the ends of its interval; None where units are too few for one."""

    difference: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class ChangedLoss(Difference):
    """The loss under a change of the reads, and its difference to the loss without."""

    loss: float


@dataclass(frozen=True, kw_only=True)
class StrengthLoss(ChangedLoss):
    """The loss with every read scaled by `strength`."""

    strength: float


@dataclass(frozen=True, kw_only=True)
class PlainLoss:
    """The loss of the network as it is, by the arithmetic of the changed ones."""

    loss: float


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The loss with the learned weights, and with others in their place."""

    learned: PlainLoss
    uniform: ChangedLoss
    mean: ChangedLoss
    hardest: ChangedLoss


@dataclass(frozen=True, kw_only=True)
class SiteSource:
    """A source at one site: its mass, and what the loss gains without it, by kind of knock-out; None where no source
    would be left."""

    site: int
    source: int
    label: str
    mass: float
    renormalised: float | None
    removed: float | None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source: its mass, averaged over the sites that have it, and what the loss gains without it anywhere."""

    source: int
    label: str
    mass: float
    renormalised: ChangedLoss | None
    removed: ChangedLoss | None


@dataclass(frozen=True, kw_only=True)
class KnockOuts:
    """Sources knocked out, at one site and everywhere."""

    sites: list[SiteSource]
    everywhere: list[Source]


@dataclass(frozen=True, kw_only=True)
class WithinSites:
    """Mean rank correlation over so many sites; None where none orders three sources."""

    value: float | None
    low: float | None
    high: float | None
    sites: int


@dataclass(frozen=True, kw_only=True)
class RankCorrelations:
    """Spearman's correlation of mass and of what the loss gains, each by kind of knock-out."""

    within_sites: Mapping[str, WithinSites]
    pooled: Mapping[str, float | None]
    everywhere: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Causal:
    """What changed reads cost."""

    selection: Selection
    knock_out: KnockOuts
    rank_correlation: RankCorrelations
    strength: list[StrengthLoss] | None
    strength_note: str | None


@dataclass(frozen=True, kw_only=True)
class Means:
    """Means over sites of two or more sources; None where there are none."""

    sharpness: float | None
    entropy: float | None
    effective_sources: float | None
    share_embedding: float | None
    share_newest: float | None
    share_older: float | None
    uniform_sharpness: float | None


@dataclass(frozen=True, kw_only=True)
class SiteReads:
    """How a site reads. Statistics of the weights are None for one source, `stream_norm` and `strength` where the read
    replaces the stream."""

    site: int
    kind: str
    third: str
    num_sources: int
    sharpness: float | None
    entropy: float | None
    effective_sources: float | None
    share_embedding: float | None
    share_newest: float | None
    share_older: float | None
    branch_norm: float
    stream_norm: float | None
    strength: float | None
    gate: float | None
    redundancy: float | None
    mean_weights: list[float]


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How the sites read, and the means over all of them and over the deepest third."""

    sources: list[str]
    sites: list[SiteReads]
    means: Means
    means_deep: Means


@dataclass(frozen=True, kw_only=True)
class LossNumbers:
    """The loss on the text, in nats per token."""

    loss: float
    perplexity: float
    bits_per_byte: float | None
    against_first: Difference | None  # None for the first checkpoint itself


@dataclass(frozen=True, kw_only=True)
class ResidualChoice:
    """A residual strategy and its options."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """One checkpoint. `routing` is None where it shows none, `causal` where its reads cannot be changed."""

    number: int
    name: str
    path: str
    step: int | None
    strategy: ResidualChoice
    num_layers: int
    hidden_size: int
    parameters: int
    precision: str
    loss: LossNumbers
    routing: Routing | None
    causal: Causal | None


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole inspection; `data` says what text was read."""

    format: int
    data: Mapping[str, Any]
    checkpoints: list[Inspected]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
