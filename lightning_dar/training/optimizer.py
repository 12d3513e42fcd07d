"""AdamW and its schedule: what decays, what the routing parameters learn at, how the rate moves."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.optim import AdamW

from lightning_dar.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with warmup and cosine decay.

    Args:
        lr: peak learning rate.
        routing_lr: peak learning rate of the residual strategy's parameters; default: lr.
        min_lr_ratio: floor of the cosine, as a share of the peak.
        warmup_steps: optimizer steps of linear warmup.
        weight_decay: decoupled weight decay.
        decay: `body` decays the sublayers' weight matrices only. `all` decays every parameter, routing included,
            as the authors' released code does; that pulls every strategy back towards no routing.
        betas: AdamW's running-average coefficients.
        eps: AdamW's denominator term.
    """

    lr: float = 6e-4
    routing_lr: float | None = None
    min_lr_ratio: float = 0.1
    warmup_steps: int = 100
    weight_decay: float = 0.1
    decay: Literal["body", "all"] = "body"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not 0 <= self.min_lr_ratio <= 1:
            raise UsageError(f"model.optimizer.min_lr_ratio={self.min_lr_ratio}: must be from 0 to 1")
        for name in ("lr", "routing_lr", "warmup_steps", "weight_decay", "eps"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise UsageError(f"model.optimizer.{name}={value}: must be finite and not negative")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"model.optimizer.betas={list(self.betas)}: each must be at least 0 and below 1")


def build_optimizer(
    named_parameters: Iterable[tuple[str, Tensor]], config: OptimizerConfig, fused: bool = True
) -> AdamW:
    """AdamW over the trainable parameters of a `Transformer`, in up to three groups named in `group["name"]`.

    `body`: weight matrices of the sublayers, decayed. `routing`: everything the strategy owns, at `routing_lr` and
    never decayed although its queries are stacked into matrices. `other`: embedding, head, norms, biases. `fused`
    is one kernel for all parameters; Lightning does not clip for it under mixed precision.
    """
    groups: dict[str, list[Tensor]] = {"body": [], "other": [], "routing": []}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            groups[_group(name)].append(parameter)
    routing_lr = config.lr if config.routing_lr is None else config.routing_lr
    settings = [
        {
            "name": name,
            "params": parameters,
            "lr": routing_lr if name == "routing" else config.lr,
            "weight_decay": config.weight_decay if name == "body" or config.decay == "all" else 0.0,
        }
        for name, parameters in groups.items()
        if parameters
    ]
    return AdamW(settings, betas=config.betas, eps=config.eps, fused=fused)


def _group(name: str) -> str:
    """By the name alone: sharded, a matrix may lie flat."""
    if name.startswith("residual."):
        return "routing"
    return "body" if name.startswith("sublayers.") and name.endswith("_proj.weight") else "other"


def warmup_cosine(config: OptimizerConfig, total_steps: int) -> Callable[[int], float]:
    """step -> factor on the peak rate: linear to 1 over `warmup_steps`, then cosine to `min_lr_ratio` at the end."""

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / config.warmup_steps
        progress = min(1.0, (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine

    return factor
