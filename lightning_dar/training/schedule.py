"""How the learning rates move: a factor on every peak rate, by the optimizer step."""

import math
from collections.abc import Callable

from lightning_dar.training.optimizer import OptimizerConfig


def schedule_factor(config: OptimizerConfig, total_steps: int) -> Callable[[int], float]:
    """step -> factor: linear to 1 over `warmup_steps`, then as `config.schedule` says, to `min_lr_ratio` at the end."""

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / config.warmup_steps
        start = config.warmup_steps
        if config.schedule == "wsd":
            start = max(start, total_steps - round(config.decay_ratio * total_steps))
        progress = min(1.0, max(0, step - start) / max(1, total_steps - start))
        left = 0.5 * (1 + math.cos(math.pi * progress)) if config.schedule == "cosine" else 1 - progress
        return config.min_lr_ratio + (1 - config.min_lr_ratio) * left

    return factor
