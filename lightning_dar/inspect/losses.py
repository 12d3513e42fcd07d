"""Loss on held-out text, by document, of a network and of the same one with changed reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_dar.diagnostics.bootstrap import MIN_UNITS, paired_intervals
from lightning_dar.diagnostics.interventions import Change, ChangedReads
from lightning_dar.errors import DataError
from lightning_dar.inspect.held_out import HeldOut
from lightning_dar.inspect.result import Difference
from lightning_dar.inspect.subject import Subject
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
    """Of the network as it is: `mean` is the validation loss, to the last bit. Raises DataError where not finite."""
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
