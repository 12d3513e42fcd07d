"""Losses on held-out text, and how they change when routing is changed.

Every change is compared with `unchanged`, which goes through the same arithmetic in the same forward or another of the
same kind.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dar.diagnostics.held_out import HeldOut, Subject
from lightning_dar.diagnostics.interventions import (
    Change,
    ChangedReads,
    fixed,
    hardest,
    knock_out,
    scaled,
    unchanged,
    uniform,
)
from lightning_dar.diagnostics.results import (
    Causal,
    ChangedLoss,
    Difference,
    KnockOuts,
    PlainLoss,
    Selection,
    SiteSource,
    Source,
    StrengthLoss,
)
from lightning_dar.diagnostics.routing import Reads, SiteGains, rank_correlations
from lightning_dar.diagnostics.statistics import MIN_UNITS, paired_intervals
from lightning_dar.errors import DataError
from lightning_dar.training.loss import token_cross_entropy

FORWARD_BYTES = 2**30  # what the copies of a batch may hold of sources, about
FORWARD_BYTES_CPU = 2**27  # more copies are no faster there: they leave the caches


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Summed losses in nats."""

    total: float  # in the order in which validation sums
    by_unit: np.ndarray  # float64 [units]
    tokens: int

    @property
    def mean(self) -> float:
        """Nats per token."""
        return self.total / self.tokens


def own_losses(subject: Subject, held_out: HeldOut, done: Callable[[int], Any] = lambda windows: None) -> Losses:
    """Computes the losses of the network as it is: `mean` is the validation loss, to the last bit. Raises DataError
    where not finite."""
    return _run(subject, held_out, None, 1, done)[0]


def changed_losses(
    subject: Subject,
    held_out: HeldOut,
    changes: Sequence[Change],
    site: int | None = None,
    done: Callable[[int], Any] = lambda windows: None,
) -> list[Losses]:
    """Under each of `changes`, at one site or at all of them; as many share a forward as memory allows.

    Args:
        subject: the model.
        held_out: the text.
        changes: what is done to the reads.
        site: the one site where it is done; default: all.
        done: is told how many windows have been read, each copy counted.

    Raises:
        DataError: a loss that is not finite.
    """
    copies, batch_size = _forward_shape(subject, held_out, len(changes))
    measured: list[Losses] = []
    for start in range(0, len(changes), copies):
        group = changes[start : start + copies]
        reads = ChangedReads(subject.model.residual, subject.num_sites, group, site)
        measured += _run(subject, held_out, reads, len(group), done, batch_size)
    return measured


def compare(measured: Sequence[Losses], base: Losses, held_out: HeldOut) -> list[Difference]:
    """Each one's difference to `base` in nats per token, and the ends of its interval, by paired bootstrap over
    the units of the text; None where those are fewer than `MIN_UNITS`."""
    differences = np.stack([losses.by_unit - base.by_unit for losses in measured])
    intervals: list[list[float | None]] = [[None, None]] * len(measured)
    if len(held_out.unit_tokens) >= MIN_UNITS:
        intervals = paired_intervals(differences, held_out.unit_tokens).tolist()
    means = (differences.sum(1) / base.tokens).tolist()
    return [Difference(difference=mean, low=low, high=high) for mean, (low, high) in zip(means, intervals, strict=True)]


def _forward_shape(subject: Subject, held_out: HeldOut, changes: int) -> tuple[int, int]:
    """Copies, and windows in each: rather few windows and all changes, which share what comes before their site."""
    if held_out.document_end_id is not None:  # the attention mask has the rows of one copy
        return 1, held_out.batch_size
    sources, seq_len = subject.num_sites + 2, held_out.units.shape[1]
    row_bytes = 3 * 4 * sources * seq_len * subject.model.config.hidden_size  # values, and temporaries as large
    rows = max(1, (FORWARD_BYTES_CPU if subject.device.type == "cpu" else FORWARD_BYTES) // row_bytes)
    copies = -(-changes // -(-changes // min(rows, changes)))  # the groups of a whole share of the changes each
    return copies, rows // copies


@torch.no_grad()
def _run(
    subject: Subject,
    held_out: HeldOut,
    residual: ChangedReads | None,
    copies: int,
    done: Callable[[int], Any],
    batch_size: int | None = None,
) -> list[Losses]:
    units = len(held_out.unit_tokens)
    totals, by_unit = np.zeros(copies), np.zeros((copies, units))
    for batch, drawn in held_out.batches(batch_size):
        batch = {name: ids.to(subject.device) for name, ids in batch.items()}
        head = partial(_heads, targets=batch["targets"], copies=copies)
        with subject.autocast():
            parts = subject.model(batch["input_ids"], batch.get("document_ids"), head=head, residual=residual)
        for number, (total, losses) in enumerate(parts):
            totals[number] += total.item()
            weights = losses.flatten().cpu().numpy()
            by_unit[number] += np.bincount(drawn.flatten(), weights=weights, minlength=units)
        done(copies * len(drawn))
    if not np.isfinite(totals).all():
        reads = "" if residual is None else " with changed reads"
        raise DataError(f"'{subject.checkpoint.path}': its loss on the text is not finite{reads}; it may have diverged")
    return [Losses(total=t, by_unit=u, tokens=held_out.tokens) for t, u in zip(totals.tolist(), by_unit, strict=True)]


def _heads(hidden: Tensor, weight: Tensor, targets: Tensor, copies: int) -> list[tuple[Tensor, Tensor]]:
    """(sum, terms [B, T]) of each copy: a matrix product's last bits depend on its number of rows."""
    return [token_cross_entropy(copy, weight, targets) for copy in hidden.chunk(copies)]


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
