"""What the callbacks that measure have in common: when, on which batches, and over which ranks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_dar.diagnostics.interventions import Together, lays_open
from lightning_dar.diagnostics.probe import DEPTHS, RoutingProbe, StreamProbe, depth_third
from lightning_dar.errors import UsageError
from lightning_dar.training.loss import IGNORE_INDEX

Probe = RoutingProbe | StreamProbe


@dataclass
class _Measurement:
    """One probe over the first micro-batches of one optimizer step, for all the callbacks that want it."""

    probe: Probe
    micro_batches: int
    step: int
    callbacks: list["Measuring"]


class Measuring(Callback):
    """Base of the callbacks that measure in training, every so many optimizer steps.

    What is measured is the step itself: its first micro-batches, by the weights that its gradient is taken at.
    However many such callbacks a step is due for, each micro-batch is run once more, without gradient, by the first
    of them; callbacks that ask for the same probe share it. Between measurements nothing is held, and the training
    forward never passes through a probe. All ranks measure alike: sharded weights are gathered in the forward.

    Args:
        every_n_steps: optimizer steps between two measurements.
        micro_batches: micro-batches of such a step that are measured, at most, on each device.
    """

    kind: ClassVar[type[Probe]]

    def __init__(self, every_n_steps: int = 100, micro_batches: int = 4):
        for name, value in (("every_n_steps", every_n_steps), ("micro_batches", micro_batches)):
            if value < 1:
                raise UsageError(f"{type(self).__name__}: {name}={value}; give 1 or more")
        self.every_n_steps, self.micro_batches = every_n_steps, micro_batches
        self._running: list[_Measurement] = []

    def measured(self, trainer: Trainer, pl_module: LightningModule, probe: Probe) -> None:
        """Called on every rank after the step, with sums over all ranks. Implemented by each callback."""
        raise NotImplementedError

    def is_due(self, step: int) -> bool:
        return step % self.every_n_steps == 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        everyone = [callback for callback in trainer.callbacks if isinstance(callback, Measuring)]
        if everyone[0] is not self or not routes(pl_module):
            return
        if not self._running:
            self._running = _start(everyone, trainer.global_step + 1, pl_module)
        wanting = [measurement for measurement in self._running if measurement.micro_batches > 0]
        if wanting:
            watch(trainer, pl_module, [measurement.probe for measurement in wanting], batch)
        for measurement in wanting:
            measurement.micro_batches -= 1

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if not self._running or trainer.global_step < self._running[0].step:
            return  # more micro-batches follow
        finished, self._running = self._running, []
        for measurement in finished:
            measurement.probe.reduce(sum_over_ranks(trainer))
            for callback in measurement.callbacks:
                callback.measured(trainer, pl_module, measurement.probe)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._running = []  # of a run that was interrupted


def _start(everyone: list[Measuring], step: int, pl_module: LightningModule) -> list[_Measurement]:
    """The measurements that `step` is due for."""
    due: dict[tuple[type[Probe], int], _Measurement] = {}
    for callback in everyone:
        if callback.is_due(step):
            key = callback.kind, callback.micro_batches
            if key not in due:
                due[key] = _Measurement(new_probe(callback.kind, pl_module), callback.micro_batches, step, [])
            due[key].callbacks.append(callback)
    return list(due.values())


def routes(pl_module: LightningModule) -> bool:
    """Whether the strategy shows its routing weights: `standard` and some plugins have none to measure."""
    return lays_open(pl_module.model.residual)


def new_probe(kind: type[Probe], pl_module: LightningModule) -> Probe:
    model = pl_module.model
    return kind(model.residual, num_sites=len(model.sublayers))


@torch.no_grad()
def watch(trainer: Trainer, pl_module: LightningModule, probes: list[Probe], batch: dict[str, Tensor]) -> None:
    """Runs `batch` past the probes, in the trainer's precision; random state and buffers are as before, whatever a
    plugin does in its forward. Tokens without a target, such as the windows that pad a rank's share, are run with the
    others, as the ranks must stay in step, and are not counted."""
    counts = (batch["targets"] != IGNORE_INDEX).flatten()
    buffers = [(buffer, buffer.clone()) for buffer in pl_module.model.buffers()]
    devices = [pl_module.device] if pl_module.device.type == "cuda" else []
    with torch.random.fork_rng(devices), trainer.precision_plugin.forward_context():
        pl_module.model(
            batch["input_ids"],
            batch.get("document_ids"),
            head=lambda hidden, weight: hidden,  # no logits: only the reads on the way are wanted
            residual=Together(probes, tokens=None if counts.all() else counts.nonzero().flatten()),
        )
    for buffer, before in buffers:
        buffer.copy_(before)


def sum_over_ranks(trainer: Trainer) -> Callable[[Tensor], Tensor]:
    """A function that sums a float64 tensor on the CPU over all ranks."""
    if trainer.world_size == 1:
        return lambda sums: sums
    device = trainer.strategy.root_device
    return lambda sums: trainer.strategy.reduce(sums.to(device), reduce_op="sum").cpu()


def by_depth(group: str, name: str, values: dict[int, float], num_sites: int) -> dict[str, float]:
    """Scalars of one quantity by site: GROUP/NAME (mean over sites), GROUP/NAME_shallow, _middle and _deep (means
    over the thirds of the depth), GROUP_sites/NAME_07."""
    if not values:
        return {}
    metrics = {f"{group}/{name}": _mean(values.values())}
    for third in DEPTHS:
        inside = [value for site, value in values.items() if depth_third(site, num_sites) == third]
        if inside:
            metrics[f"{group}/{name}_{third}"] = _mean(inside)
    return metrics | {f"{group}_sites/{name}_{site:02d}": value for site, value in values.items()}


def log_metrics(trainer: Trainer, metrics: dict[str, float], steps: int) -> None:
    """What was measured in the last of so many steps, directly to the loggers: `LightningModule.log` would repeat the
    values at every step until the next ones."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, step=logged_step(steps))


def logged_step(steps: int) -> int:
    """The number under which Lightning logs the last of so many steps: it counts them from 0."""
    return max(0, steps - 1)


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)
