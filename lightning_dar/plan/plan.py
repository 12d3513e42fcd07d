"""The plan of a run: what it needs, and the batch that fits.

Tried are smaller micro-batches at the same tokens a step, with more activation checkpointing or not; then the same
under FSDP2; then with more GPUs; then on larger ones. Of the first of these that fit, the one that trains fastest is
the nearest.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from lightning_dar.model.flops import model_flops, read_flops
from lightning_dar.ops import DepthRead
from lightning_dar.plan.duration import HIGH, LOW, communication, read_traffic, step
from lightning_dar.plan.memory import Parameters, checkpointed_share, count_parameters, held, memory, usable
from lightning_dar.plan.setting import DEVICES, MODES, Device, Setting
from lightning_dar.plan.trace import Trace, trace_strategy
from lightning_dar.residual import ResidualConfig

MAX_GPUS = 4096


def nearest_fit(
    setting: Setting, parameters: Parameters, trace: Trace, depth_read: DepthRead = "auto"
) -> Setting | None:
    """A setting of the same run that fits; None where none does."""

    def fits(candidate: Setting) -> bool:
        return memory(candidate, parameters, trace, depth_read).total <= usable(candidate)

    def seconds_per_token(candidate: Setting) -> float:
        return step(candidate, parameters, trace, LOW, depth_read).seconds / candidate.tokens_per_step

    for device in _devices(setting):
        gpus = setting.gpus
        while gpus <= MAX_GPUS:
            for strategy in _strategies(setting, gpus):
                variants = _variants(replace(setting, device=device), gpus, strategy)
                found = [candidate for candidate in variants if fits(candidate)]
                if found:
                    return min(found, key=seconds_per_token)
            gpus *= 2
    return None


def _devices(setting: Setting) -> list[Device]:
    """The setting's own kind, then those that are no slower and have more memory, the smallest first."""
    larger = [
        device
        for device in DEVICES.values()
        if device.memory > setting.device.memory and device.peak_bf16 >= setting.device.peak_bf16
    ]
    return [setting.device, *sorted(larger, key=lambda device: device.memory)]


def _strategies(setting: Setting, gpus: int) -> list[str]:
    """The setting's own first, where it can use that many GPUs."""
    own = [] if setting.strategy == "single" and gpus > 1 else [setting.strategy]
    return own + (["fsdp2"] if gpus > 1 and not setting.sharded else [])


def _variants(setting: Setting, gpus: int, strategy: str) -> Iterator[Setting]:
    """All batch sizes and checkpointing modes, at the same tokens a step where accumulation allows it."""
    present = checkpointed_share(setting.checkpointing)
    modes = [setting.checkpointing, *(mode for mode in MODES if checkpointed_share(mode) > present or mode == "full")]
    for mode in dict.fromkeys(modes):
        for batch_size in _divisors(setting.batch_size):
            smaller = setting.with_batch(batch_size)
            accumulate = max(1, smaller.accumulate * setting.gpus // gpus)
            yield replace(smaller, gpus=gpus, strategy=strategy, checkpointing=mode, accumulate=accumulate)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(number, 0, -1) if number % divisor == 0]


def plan(setting: Setting, residual: ResidualConfig, tokens: float | None = None) -> dict[str, Any]:
    """What a run needs and takes.

    Args:
        setting: all but the strategy.
        residual: the strategy.
        tokens: to train on in all; default: 20 a parameter.

    Returns:
        Bytes, seconds and FLOPs a token; `fits` and, where it does not, `nearest`, the setting that does (or None).

    Raises:
        UsageError: options that cannot work in this architecture.
    """
    parameters = count_parameters(setting.config, residual)
    trace = trace_strategy(setting.config, residual, setting.dtypes)
    needed = memory(setting, parameters, trace, residual.depth_read)
    fits = needed.total <= usable(setting)
    nearest = None if fits else nearest_fit(setting, parameters, trace, residual.depth_read)
    return {
        "strategy": residual.name,
        "options": residual.options,
        "parameters": asdict(parameters),
        "flops_per_token": _flops(setting, trace.sources_read),
        "memory": {**asdict(needed), "total": needed.total, "usable": usable(setting)},
        "fits": fits,
        "nearest": None if nearest is None else _described(nearest, parameters, trace, residual),
        "depth_read": _depth_read(setting, trace, residual),
        "held": _held(setting, trace, residual),
        "communication": {
            strategy: asdict(communication(replace(setting, strategy=strategy), parameters))
            for strategy in ("ddp", "fsdp2")
        },
        "speed": _speed(setting, parameters, trace, residual, tokens or 20 * parameters.total),
    }


def _held(setting: Setting, trace: Trace, residual: ResidualConfig) -> dict[str, int]:
    """Activations and sources in bytes on each GPU, by checkpointing mode."""
    by_mode = {}
    for mode in MODES:
        kept = held(setting.config, trace, setting.dtypes, checkpointing=mode, depth_read=residual.depth_read)
        by_mode[mode] = setting.tokens_per_batch * (kept.sublayers + kept.sources)
    return by_mode


def _described(nearest: Setting, parameters: Parameters, trace: Trace, residual: ResidualConfig) -> dict[str, Any]:
    """What to set, and what it comes to."""
    return {
        "gpu": nearest.device.name,
        "gpus": nearest.gpus,
        "strategy": nearest.strategy,
        "batch_size": nearest.batch_size,
        "accumulate": nearest.accumulate,
        "checkpointing": nearest.checkpointing,
        "memory": memory(nearest, parameters, trace, residual.depth_read).total,
        "tokens_per_second": [
            nearest.tokens_per_step / step(nearest, parameters, trace, assumed, residual.depth_read).seconds
            for assumed in (LOW, HIGH)
        ],
    }


def _flops(setting: Setting, sources_read: int) -> dict[str, float]:
    own = model_flops(setting.config, setting.seq_len)
    reads = read_flops(setting.config.hidden_size, sources_read)
    return {"model": own, "depth_reads": reads, "depth_reads_share": reads / (own + reads)}


def _depth_read(setting: Setting, trace: Trace, residual: ResidualConfig) -> dict[str, Any]:
    """A token, forward and backward; seconds of one optimizer step on one GPU, from the faster to the slower."""
    traffic = read_traffic(setting.config.hidden_size, trace, residual.depth_read)
    tokens = setting.tokens_per_batch * setting.accumulate
    return {
        "backend": residual.depth_read,
        "sources_read": trace.sources_read,
        "bytes_per_token": traffic,
        "bytes_per_step": tokens * traffic,
        "seconds_per_step": [
            tokens * traffic / (setting.device.bandwidth * assumed.bandwidth) for assumed in (HIGH, LOW)
        ],
    }


def _speed(
    setting: Setting, parameters: Parameters, trace: Trace, residual: ResidualConfig, tokens: float
) -> dict[str, Any]:
    """Each from the lower to the higher; `utilisation` of the peak by model FLOPs alone."""
    steps = [step(setting, parameters, trace, assumed, residual.depth_read) for assumed in (LOW, HIGH)]
    rates = [setting.tokens_per_step / taken.seconds for taken in steps]
    flops = model_flops(setting.config, setting.seq_len)
    peak = setting.device.peak(setting.precision) * setting.gpus
    return {
        "tokens_per_second": rates,
        "utilisation": [rate * flops / peak for rate in rates],
        "step_seconds": [asdict(taken) for taken in reversed(steps)],
        "tokens": tokens,
        "seconds": [tokens / rate for rate in reversed(rates)],
    }
