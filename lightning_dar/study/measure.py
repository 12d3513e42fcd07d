"""What a finished run is worth, measured on all its validation windows."""

import math
import platform
import re
from pathlib import Path

import lightning
import numpy as np
import torch

from lightning_dar.checkpoint.carried import tokenizer_of
from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.errors import DataError
from lightning_dar.inspect.held_out import validation_windows
from lightning_dar.inspect.losses import own_losses
from lightning_dar.inspect.routing import measure_reads
from lightning_dar.inspect.subject import Subject, load_subject
from lightning_dar.plan.flops import model_flops
from lightning_dar.run.parser import find_device
from lightning_dar.study.result import Curve, Measured, SiteSharpness

CURVES = ("train/loss", "val/loss", "routing/sharpness")
RATE = "throughput/tokens_per_second"
POINTS = 200  # of a curve
ALL = 2**60  # tokens


def measure(checkpoint: Checkpoint, logs: Path, seconds: float) -> Measured:
    """Measures the last checkpoint of a run.

    Args:
        checkpoint: the run's last.
        logs: the folder of its TensorBoard events.
        seconds: time spent in training.

    Raises:
        DataError: a loss that is not finite, or data that are not there any more.
    """
    subject = load_subject(checkpoint, "cell", find_device("auto"))
    seq_len, steps = checkpoint.seq_len, checkpoint.content["global_step"]
    held_out = validation_windows(checkpoint, tokenizer_of(checkpoint), seq_len, ALL)
    losses, scalars = own_losses(subject, held_out), _scalars(logs)
    bytes_per_token = held_out.about["bytes_per_token"]
    train_tokens = steps * checkpoint.content["TextData"]["step_windows"] * seq_len
    return Measured(
        loss=losses.mean,
        bits_per_byte=None if bytes_per_token is None else losses.mean / (bytes_per_token * math.log(2)),
        unit=held_out.unit,
        unit_losses=losses.by_unit.tolist(),
        unit_tokens=held_out.unit_tokens.tolist(),
        parameters=sum(parameter.numel() for parameter in subject.model.parameters()),
        residual_parameters=sum(parameter.numel() for parameter in subject.model.residual.parameters()),
        steps=steps,
        train_tokens=train_tokens,
        train_flops=train_tokens * model_flops(subject.model.config, seq_len),
        tokens_per_second=float(np.median(scalars[RATE].values)) if RATE in scalars else None,
        seconds=seconds,
        sharpness=_sharpness(subject, held_out),
        curves={name: thinned(scalars[name], POINTS) for name in CURVES if name in scalars},
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "lightning": lightning.__version__,
            "processor": processor(),
        },
    )


def processor() -> str:
    """The processor and its vector instructions as torch uses them, on which the last bits of a loss depend."""
    try:
        names = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        names = None
    name = names.group(1) if names else platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def thinned(curve: Curve, points: int) -> Curve:
    """At most `points` points: means over consecutive runs of the curve, each at its last step."""
    if len(curve.steps) <= points:
        return curve
    parts = np.array_split(np.arange(len(curve.steps)), points)
    return Curve(
        steps=[curve.steps[part[-1]] for part in parts],
        values=[float(np.mean(np.asarray(curve.values)[part])) for part in parts],
    )


def _sharpness(subject: Subject, held_out) -> list[SiteSharpness]:
    if not subject.routes:
        return []
    reads = measure_reads(subject, held_out, lambda windows: None)
    return [
        SiteSharpness(site=site, num_sources=reads.stream[site].num_sources, sharpness=float(routing.sharpness))
        for site, routing in reads.routing.items()
    ]


def _scalars(logs: Path) -> dict[str, Curve]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(logs), size_guidance={"scalars": 0})
    events.Reload()
    curves = {}
    for name in events.Tags()["scalars"]:
        logged = {event.step: event.value for event in events.Scalars(name)}  # what was done again counts once
        if not all(math.isfinite(value) for value in logged.values()):
            raise DataError(f"{logs}: {name} is not finite at some step")
        curves[name] = Curve(steps=sorted(logged), values=[logged[step] for step in sorted(logged)])
    return curves
