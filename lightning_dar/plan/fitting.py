"""The nearest setting that fits into memory, checked by the same arithmetic.

Tried are smaller micro-batches at the same tokens a step, with more activation checkpointing or not; then the same
under FSDP2; then with more GPUs; then on larger ones. Of the first of these that fit, the one that trains fastest is
the nearest.
"""

from collections.abc import Iterator
from dataclasses import replace

from lightning_dar.ops import DepthRead
from lightning_dar.plan.activations import MODES, checkpointed_share
from lightning_dar.plan.devices import DEVICES, Device
from lightning_dar.plan.duration import LOW, step
from lightning_dar.plan.memory import memory, usable
from lightning_dar.plan.parameters import Parameters
from lightning_dar.plan.setting import Setting
from lightning_dar.plan.trace import Trace

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
