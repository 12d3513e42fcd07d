"""Inspects checkpoints, one after the other, on the same text."""

import math
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.diagnostics.held_out import HeldOut, Subject, load_subject
from lightning_dar.diagnostics.losses import Losses, causal_numbers, compare, forwards_a_window, own_losses
from lightning_dar.diagnostics.results import (
    Causal,
    Difference,
    Inspected,
    LossNumbers,
    Report,
    ResidualChoice,
    Routing,
)
from lightning_dar.diagnostics.routing import measure_reads, routing_numbers
from lightning_dar.diagnostics.statistics import LEVEL, RESAMPLES
from lightning_dar.version import __version__

FORMAT = 1


def make_report(
    checkpoints: Sequence[Checkpoint],
    names: Sequence[str],
    held_out: HeldOut,
    device: torch.device,
    settings: dict[str, Any],
) -> Report:
    """Inspects one checkpoint after the other; one model is in memory at a time."""
    inspected: list[Inspected] = []
    losses: list[Losses] = []
    for number, (checkpoint, name) in enumerate(zip(checkpoints, names, strict=True), start=1):
        subject = load_subject(checkpoint, name, device)
        own, routing, causal = _measure(subject, held_out)
        losses.append(own)
        against = compare([own], losses[0], held_out)[0] if number > 1 else None
        loss = _loss(own, held_out, against)
        inspected.append(Inspected(number=number, **_identity(subject), loss=loss, routing=routing, causal=causal))
    return Report(
        format=FORMAT,
        data=held_out.about,
        checkpoints=inspected,
        settings={**settings, "device": str(device), "bootstrap_resamples": RESAMPLES, "bootstrap_level": LEVEL},
        versions={
            "lightning_dar": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    )


def _measure(subject: Subject, held_out: HeldOut) -> tuple[Losses, Routing | None, Causal | None]:
    from tqdm import tqdm

    windows = len(held_out.windows)
    with tqdm(total=windows, desc=subject.name, unit="window", mininterval=0.5) as bar:
        own = own_losses(subject, held_out, bar.update)
        routing = causal = None
        if subject.routes:
            bar.total += windows
            reads = measure_reads(subject, held_out, bar.update)
            if reads.stream:
                routing = routing_numbers(reads)
            if reads.stream and subject.can_be_changed:
                bar.total += windows * forwards_a_window(reads)
                causal = causal_numbers(subject, held_out, reads, own, bar.update)
    return own, routing, causal


def _identity(subject: Subject) -> dict[str, Any]:
    checkpoint = subject.checkpoint
    architecture = checkpoint.description["architecture"]
    return {
        "name": subject.name,
        "path": str(checkpoint.path),
        "step": checkpoint.content.get("global_step"),
        "strategy": ResidualChoice(name=checkpoint.residual.name, options=checkpoint.residual.options),
        "num_layers": architecture["num_layers"],
        "hidden_size": architecture["hidden_size"],
        "parameters": sum(parameter.numel() for parameter in subject.model.parameters()),
        "precision": subject.precision,
    }


def _loss(own: Losses, held_out: HeldOut, against_first: Difference | None) -> LossNumbers:
    bytes_per_token = held_out.about["bytes_per_token"]
    bits = None if bytes_per_token is None else own.mean / (bytes_per_token * math.log(2))
    return LossNumbers(loss=own.mean, perplexity=math.exp(own.mean), bits_per_byte=bits, against_first=against_first)
