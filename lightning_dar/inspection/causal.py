"""What routing is worth: the loss with reads changed, against the loss without, on the same text.

Every change is compared with `unchanged`, which goes through the same arithmetic in the same forward or another of the
same kind.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lightning_dar.diagnostics.bootstrap import paired_intervals
from lightning_dar.diagnostics.interventions import Change, fixed, hardest, knock_out, scaled, unchanged, uniform
from lightning_dar.diagnostics.rank_correlation import spearman
from lightning_dar.inspection.held_out import HeldOut
from lightning_dar.inspection.losses import Losses, changed_losses
from lightning_dar.inspection.routing import Reads
from lightning_dar.inspection.subject import Subject

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


def causal_numbers(subject: Subject, held_out: HeldOut, reads: Reads, own: Losses, done: Done) -> dict[str, Any]:
    """The part of the report on changed reads; `own` are the losses of the network as it is. Differences are in nats
    a token, intervals are 95%, by paired bootstrap over the units of the text."""
    keys = _knock_outs(len(reads.labels))
    means = {site: routing.mean_weights for site, routing in reads.routing.items()}
    changes: list[Change] = [unchanged, uniform, fixed(means), hardest, *(_change(*key) for key in keys)]
    base, *measured = changed_losses(subject, held_out, changes, done=done)
    compared = _compare(measured, base, held_out)
    sites = list(_at_sites(subject, held_out, reads, done))
    everywhere = _everywhere(reads, keys, compared[len(SELECTIONS) :])
    return {
        "selection": {
            "learned": {"loss": base.mean},
            **dict(zip(SELECTIONS, compared[: len(SELECTIONS)], strict=True)),
        },
        "knock_out": {"sites": sites, "everywhere": everywhere},
        "rank_correlation": _rank_correlations(sites, everywhere),
        "strength": _strengths(subject, held_out, own, base, done) if reads.are_additive else None,
        "strength_note": None if reads.are_additive else NO_STRENGTH,
    }


def _knock_outs(num_sources: int) -> list[tuple[int, str]]:
    """(source, kind); nothing is left to renormalise without a lone source."""
    kinds = KNOCK_OUTS if num_sources > 1 else ("removed",)
    return [(source, kind) for source in range(num_sources) for kind in kinds]


def _change(source: int, kind: str) -> Change:
    return knock_out(source, renormalised=kind == "renormalised")


def _at_sites(subject: Subject, held_out: HeldOut, reads: Reads, done: Done) -> Iterator[dict[str, Any]]:
    """One row a source and site: its mass, and what the loss gains without it."""
    for site, stream in reads.stream.items():
        keys = _knock_outs(stream.num_sources)
        base, *measured = changed_losses(
            subject, held_out, [unchanged, *(_change(*key) for key in keys)], site, done=done
        )
        gains = {key: _difference(losses, base) for key, losses in zip(keys, measured, strict=True)}
        for source, mass in enumerate(reads.mean_weights(site)):
            row = {"site": site, "source": source, "label": reads.labels[source], "mass": mass}
            yield row | {kind: gains.get((source, kind)) for kind in KNOCK_OUTS}


def _everywhere(reads: Reads, keys: list[tuple[int, str]], compared: list[dict[str, float]]) -> list[dict[str, Any]]:
    """One row a source: its mass, averaged over all sites that read, and what the loss gains without it anywhere."""
    by_key = dict(zip(keys, compared, strict=True))
    masses = [reads.mean_weights(site) for site in reads.stream]
    rows = []
    for source, label in enumerate(reads.labels):
        mass = sum(weights[source] for weights in masses if source < len(weights)) / len(masses)
        row = {"source": source, "label": label, "mass": mass}
        rows.append(row | {kind: by_key.get((source, kind)) for kind in KNOCK_OUTS})
    return rows


def _rank_correlations(sites: list[dict[str, Any]], everywhere: list[dict[str, Any]]) -> dict[str, float | None]:
    """Spearman's, of mass and of what the loss gains: over the reads of all sites, and over the sources."""
    found = {}
    for kind in KNOCK_OUTS:
        cells = [(row["mass"], row[kind]) for row in sites if row["renormalised"] is not None]
        sources = [(row["mass"], row[kind]["difference"]) for row in everywhere if row[kind] is not None]
        found[f"sites_{kind}"] = _spearman_of(cells)
        found[f"everywhere_{kind}"] = _spearman_of(sources)
    return found


def _spearman_of(pairs: list[tuple[float, float]]) -> float | None:
    return spearman([mass for mass, _ in pairs], [gain for _, gain in pairs])


def _strengths(subject: Subject, held_out: HeldOut, own: Losses, base: Losses, done: Done) -> list[dict[str, float]]:
    """One row a strength of the routed branch. At 1 the strategy reads by itself: the loss is the network's own."""
    others = [strength for strength in STRENGTHS if strength != 1]
    measured = changed_losses(subject, held_out, [scaled(strength) for strength in others], done=done)
    rows = dict(zip(others, _compare(measured, base, held_out), strict=True))
    rows[1.0] = {"loss": own.mean, "difference": 0.0, "low": 0.0, "high": 0.0}
    return [{"strength": strength, **rows[strength]} for strength in STRENGTHS]


def _difference(losses: Losses, base: Losses) -> float:
    return float((losses.by_unit - base.by_unit).sum() / base.tokens)


def _compare(measured: list[Losses], base: Losses, held_out: HeldOut) -> list[dict[str, float]]:
    """Loss, difference to `base`, and the ends of its interval."""
    differences = np.stack([losses.by_unit - base.by_unit for losses in measured])
    intervals = paired_intervals(differences, held_out.unit_tokens).tolist()
    return [
        {"loss": losses.mean, "difference": _difference(losses, base), "low": low, "high": high}
        for losses, (low, high) in zip(measured, intervals, strict=True)
    ]
