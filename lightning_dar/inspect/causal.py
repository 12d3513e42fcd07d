"""What routing is worth: the loss with reads changed, against the loss without, on the same text.

Every change is compared with `unchanged`, which goes through the same arithmetic in the same forward or another of the
same kind.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lightning_dar.diagnostics.interventions import Change, fixed, hardest, knock_out, scaled, unchanged, uniform
from lightning_dar.inspect.correlation import SiteGains, rank_correlations
from lightning_dar.inspect.held_out import HeldOut
from lightning_dar.inspect.losses import Losses, changed_losses, compare
from lightning_dar.inspect.result import (
    Causal,
    ChangedLoss,
    KnockOuts,
    PlainLoss,
    Selection,
    SiteSource,
    Source,
    StrengthLoss,
)
from lightning_dar.inspect.routing import Reads
from lightning_dar.inspect.subject import Subject

STRENGTHS = tuple(step / 4 for step in range(9))
SELECTIONS = ("uniform", "mean", "hardest")
KNOCK_OUTS = ("renormalised", "removed")
NO_STRENGTH = "reads replace the stream: a strength of the branch has no meaning"

Done = Callable[[int], Any]


def forwards_a_window(reads: Reads) -> int:
    """How often `causal_numbers` reads each window, every copy counted."""
    at_sites = sum(1 + len(_knock_outs(site.num_sources)) for site in reads.stream.values())
    everywhere = 1 + len(SELECTIONS) + len(_knock_outs(len(reads.labels)))
    return at_sites + everywhere + (len(STRENGTHS) - 1 if reads.are_additive else 0)


def causal_numbers(subject: Subject, held_out: HeldOut, reads: Reads, own: Losses, done: Done) -> Causal:
    """What changed reads cost; `own` are the losses of the network as it is."""
    keys = _knock_outs(len(reads.labels))
    means = {site: routing.mean_weights for site, routing in reads.routing.items()}
    changes: list[Change] = [unchanged, uniform, fixed(means), hardest, *(_change(*key) for key in keys)]
    base, *measured = changed_losses(subject, held_out, changes, done=done)
    compared = _compare(measured, base, held_out)
    gains = {site: _gains_at(site, subject, held_out, reads, done) for site in reads.stream}
    everywhere = _everywhere(reads, keys, compared[len(SELECTIONS) :])
    selected = dict(zip(SELECTIONS, compared[: len(SELECTIONS)], strict=True))
    return Causal(
        selection=Selection(learned=PlainLoss(loss=base.mean), **selected),
        knock_out=KnockOuts(sites=list(_cells(reads, gains, base.tokens)), everywhere=everywhere),
        rank_correlation=rank_correlations(list(gains.values()), everywhere, KNOCK_OUTS, held_out),
        strength=_strengths(subject, held_out, own, base, done) if reads.are_additive else None,
        strength_note=None if reads.are_additive else NO_STRENGTH,
    )


def _knock_outs(num_sources: int) -> list[tuple[int, str]]:
    """(source, kind); nothing is left to renormalise without a lone source."""
    kinds = KNOCK_OUTS if num_sources > 1 else ("removed",)
    return [(source, kind) for source in range(num_sources) for kind in kinds]


def _change(source: int, kind: str) -> Change:
    return knock_out(source, renormalised=kind == "renormalised")


def _gains_at(site: int, subject: Subject, held_out: HeldOut, reads: Reads, done: Done) -> SiteGains:
    """What the loss gains without each source of one site."""
    keys = _knock_outs(reads.stream[site].num_sources)
    changes = [unchanged, *(_change(*key) for key in keys)]
    base, *measured = changed_losses(subject, held_out, changes, site, done=done)
    gains = np.stack([losses.by_unit - base.by_unit for losses in measured])
    by_unit = {kind: gains[[key[1] == kind for key in keys]] for kind in {kind for _, kind in keys}}
    return SiteGains(masses=reads.mean_weights(site), by_unit=by_unit)


def _cells(reads: Reads, gains: dict[int, SiteGains], tokens: int) -> Iterator[SiteSource]:
    for site, found in gains.items():
        means = {kind: (by_unit.sum(1) / tokens).tolist() for kind, by_unit in found.by_unit.items()}
        for source, mass in enumerate(found.masses):
            costs = {kind: means[kind][source] if kind in means else None for kind in KNOCK_OUTS}
            yield SiteSource(site=site, source=source, label=reads.labels[source], mass=mass, **costs)


def _everywhere(reads: Reads, keys: list[tuple[int, str]], compared: list[ChangedLoss]) -> list[Source]:
    by_key = dict(zip(keys, compared, strict=True))
    weights = [reads.mean_weights(site) for site in reads.stream]
    return [
        Source(
            source=source,
            label=label,
            mass=float(np.mean([site[source] for site in weights if source < len(site)])),
            **{kind: by_key.get((source, kind)) for kind in KNOCK_OUTS},
        )
        for source, label in enumerate(reads.labels)
    ]


def _strengths(subject: Subject, held_out: HeldOut, own: Losses, base: Losses, done: Done) -> list[StrengthLoss]:
    """The loss at each strength of the routed branch. At 1 the residual reads by itself: the loss is the network's
    own."""
    others = [strength for strength in STRENGTHS if strength != 1]
    measured = changed_losses(subject, held_out, [scaled(strength) for strength in others], done=done)
    losses = dict(zip(others, _compare(measured, base, held_out), strict=True))
    (itself,) = compare([base], base, held_out)  # zero
    losses[1.0] = ChangedLoss(loss=own.mean, **vars(itself))
    return [StrengthLoss(strength=strength, **vars(losses[strength])) for strength in STRENGTHS]


def _compare(measured: list[Losses], base: Losses, held_out: HeldOut) -> list[ChangedLoss]:
    compared = compare(measured, base, held_out)
    return [ChangedLoss(loss=losses.mean, **vars(found)) for losses, found in zip(measured, compared, strict=True)]
