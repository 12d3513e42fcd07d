"""Muon and AdamW as one optimizer, with one state, so that whatever trains by one optimizer trains by the two."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW, Muon, Optimizer

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
