"""The optimizer, AdamW or Muon beside it: parameter groups, and the schedule of their learning rates."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW, Muon, Optimizer

from lightning_dar.errors import UsageError
from lightning_dar.model.layer import is_matrix

SCALE = "match_rms_adamw"
"""An update of Muon is as large as one of AdamW at the same rate."""


class MuonAndAdamW(Optimizer):
    """Muon for the group named `body`, which holds matrices only, AdamW for the others."""

    def __init__(self, groups: list[dict[str, Any]], momentum: float, **adamw: Any):
        body, rest = ([group for group in groups if (group["name"] == "body") is inside] for inside in (True, False))
        self._muon = _ShardedMuon(body, momentum=momentum, adjust_lr_fn=SCALE)
        self._adamw = AdamW(rest, **adamw)
        super().__init__([*self._muon.param_groups, *self._adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer, is_muon in ((self._muon, True), (self._adamw, False)):
            optimizer.state = self.state
            optimizer.param_groups = [group for group in self.param_groups if (group["name"] == "body") is is_muon]
            optimizer.step()
        return loss


class _ShardedMuon(Muon):
    """torch's, for parameters that may be sharded.

    Of a sharded matrix every rank keeps its shard of the momentum. Only the update is gathered, one matrix at a time,
    and every rank orthogonalises it whole: on shards, torch's own sums up parts in bf16, which the iteration amplifies.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        parameters = [(parameter, group) for group in self.param_groups for parameter in group["params"]]
        if not isinstance(parameters[0][0], DTensor):  # of a network all are, or none
            super().step()
            return
        for parameter, group in parameters:
            if parameter.grad is not None:
                self._step_sharded(parameter, group)

    def _step_sharded(self, parameter: DTensor, group: dict[str, Any]) -> None:
        state, momentum, grad = self.state[parameter], group["momentum"], parameter.grad
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(grad)
        average = state["momentum_buffer"].lerp_(grad, 1 - momentum)
        change = torch.nn.Parameter(torch.zeros(grad.shape, dtype=grad.dtype, device=grad.device))
        change.grad = grad.lerp(average, momentum).full_tensor()
        Muon([change], lr=group["lr"], weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn=SCALE).step()
        shard = distribute_tensor(change.detach(), parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(shard)


OptimizerName = Literal["adamw", "muon"]
Schedule = Literal["cosine", "linear", "wsd"]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """An optimizer and the schedule of its learning rates.

    Args:
        name: `adamw`, or `muon`: Muon for the weight matrices of the sublayers and AdamW for all else. Muon's updates
            are scaled to the size of AdamW's, so that rates and decay mean the same for both.
        lr: peak learning rate.
        routing_lr: peak learning rate of the residual strategy's parameters; default: lr.
        schedule: what follows the warmup: `cosine` or `linear` decay to the end, or `wsd`, the peak rate until a
            linear decay over the last steps.
        min_lr_ratio: floor of the decay, reached at the end, as a share of the peak.
        warmup_steps: optimizer steps of linear warmup.
        decay_ratio: share of all steps in which `wsd` decays.
        weight_decay: decoupled weight decay.
        decay: `body` decays the sublayers' weight matrices only. `all` decays every parameter, routing included,
            as the authors' released code does; that pulls every strategy back towards no routing.
        betas: AdamW's running-average coefficients.
        eps: AdamW's denominator term.
        momentum: Muon's running-average coefficient.
    """

    name: OptimizerName = "adamw"
    lr: float = 6e-4
    routing_lr: float | None = None
    schedule: Schedule = "cosine"
    min_lr_ratio: float = 0.1
    warmup_steps: int = 100
    decay_ratio: float = 0.2
    weight_decay: float = 0.1
    decay: Literal["body", "all"] = "body"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.95

    def __post_init__(self) -> None:
        for name, known in (("name", get_args(OptimizerName)), ("schedule", get_args(Schedule))):
            if getattr(self, name) not in known:
                raise UsageError(f"model.optimizer.{name}={getattr(self, name)}: must be one of {', '.join(known)}")
        for name in ("min_lr_ratio", "decay_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"model.optimizer.{name}={getattr(self, name)}: must be from 0 to 1")
        for name in ("lr", "routing_lr", "warmup_steps", "weight_decay", "eps"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise UsageError(f"model.optimizer.{name}={value}: must be finite and not negative")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"model.optimizer.betas={list(self.betas)}: each must be at least 0 and below 1")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"model.optimizer.momentum={self.momentum}: must be at least 0 and below 1")


def build_optimizer(
    named_parameters: Iterable[tuple[str, Tensor]],
    config: OptimizerConfig,
    fused: bool = True,
    decays: Callable[[str], bool] = lambda name: name.startswith("sublayers.") and is_matrix(name),
) -> Optimizer:
    """The optimizer of the trainable parameters of a `Transformer`, in up to three groups named in `group["name"]`.

    `body`: weight matrices of the sublayers, decayed; Muon's, where it is asked for. `routing`: everything the strategy
    owns, at `routing_lr` and never decayed although its queries are stacked into matrices. `other`: embedding, head,
    norms, biases. `fused`: AdamW is one kernel for all parameters; Lightning does not clip for it in mixed precision.
    `decays`: whether a parameter belongs to `body`, by its name; that is `Transformer.decays`, default: what a
    sublayer says that has nothing special to say.
    """
    groups: dict[str, list[Tensor]] = {"body": [], "other": [], "routing": []}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            groups["routing" if name.startswith("residual.") else "body" if decays(name) else "other"].append(parameter)
    routing_lr = config.lr if config.routing_lr is None else config.routing_lr
    settings: list[dict[str, Any]] = [
        {
            "name": name,
            "params": parameters,
            "lr": routing_lr if name == "routing" else config.lr,
            "weight_decay": config.weight_decay if name == "body" or config.decay == "all" else 0.0,
        }
        for name, parameters in groups.items()
        if parameters
    ]
    adamw = {"betas": config.betas, "eps": config.eps, "fused": fused}
    if config.name == "muon" and groups["body"]:
        return MuonAndAdamW(settings, config.momentum, **adamw)
    return AdamW(settings, **adamw)


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
