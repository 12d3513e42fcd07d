"""Is routing sharp, or has it collapsed to the mean of its sources?"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from callbacks.heat_map import draw_routing
from lightning_dar.diagnostics.probe import RoutingProbe, SiteRouting, mean_sharpness
from lightning_dar.diagnostics.wrapper import lays_open


class RoutingSharpness(Callback):
    """Logs the mean over tokens of the largest routing weight, per site and averaged.

    In training, every so many steps on the batch just trained on: `routing/sharpness` (all routed sites),
    `routing/sharpness_deep` (deepest third), `routing/entropy` (H / log n) and `routing_sites/sharpness_NN`. In
    validation, on its first batches: `val/sharpness`, `val/sharpness_deep`, and the map of mean weights, site by
    source, as a TensorBoard image; the last one also as `routing.png` beside the logs. A site with fewer than two
    sources routes nothing and is left out, and so is `standard` altogether.

    Each measurement is one extra forward without gradient; between measurements nothing is held.

    Args:
        every_n_steps: optimizer steps between two measurements in training.
        val_batches: validation batches that are measured, on each device.
    """

    def __init__(self, every_n_steps: int = 50, val_batches: int = 4):
        self.every_n_steps, self.val_batches = every_n_steps, val_batches
        self.heat_map: Path | None = None
        self._measured_step = 0
        self._val_probe: RoutingProbe | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step - self._measured_step < self.every_n_steps or not routes(pl_module):
            return
        self._measured_step = trainer.global_step
        probe = _new_probe(pl_module)
        _run(trainer, pl_module, probe, batch)
        probe.reduce(_summed(trainer))
        sites = probe.sites
        if not sites:
            return
        metrics = {
            "routing/sharpness": mean_sharpness(sites, probe.num_sites),
            "routing/sharpness_deep": mean_sharpness(sites, probe.num_sites, deepest=1 / 3),
            "routing/entropy": sum(site.entropy for site in sites.values()) / len(sites),
            **{f"routing_sites/sharpness_{site:02d}": routing.sharpness for site, routing in sites.items()},
        }
        for logger in trainer.loggers:  # directly: `log` would repeat the value at every step until the next one
            logger.log_metrics(metrics, step=trainer.global_step)
        pl_module.log("sharpness", metrics["routing/sharpness"], prog_bar=True, logger=False)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._val_probe = _new_probe(pl_module) if routes(pl_module) else None

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if self._val_probe is not None and batch_idx < self.val_batches:
            _run(trainer, pl_module, self._val_probe, batch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        probe = self._val_probe
        if probe is None:
            return
        probe.reduce(_summed(trainer))
        sites = probe.sites
        if not sites:
            return
        deep = mean_sharpness(sites, probe.num_sites, deepest=1 / 3)
        pl_module.log("val/sharpness", mean_sharpness(sites, probe.num_sites), sync_dist=True)  # equal on all ranks
        pl_module.log("val/sharpness_deep", deep, sync_dist=True)
        log_dir = trainer.log_dir  # asks all ranks
        if trainer.is_global_zero and not trainer.sanity_checking and trainer.logger is not None:
            self._draw(trainer, sites, log_dir)

    def _draw(self, trainer: Trainer, sites: dict[int, SiteRouting], log_dir: str | None) -> None:
        figure = draw_routing(sites, f"step {trainer.global_step}")
        for logger in trainer.loggers:
            if hasattr(getattr(logger, "experiment", None), "add_figure"):
                logger.experiment.add_figure("routing/mean_weights", figure, trainer.global_step, close=False)
        if log_dir is not None:
            self.heat_map = Path(log_dir) / "routing.png"
            self.heat_map.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(self.heat_map, dpi=150)


def routes(pl_module: LightningModule) -> bool:
    """Whether the strategy shows its routing weights: `standard` and some plugins have none to measure."""
    return lays_open(pl_module.model.residual)


def _new_probe(pl_module: LightningModule) -> RoutingProbe:
    model = pl_module.model
    return RoutingProbe(model.residual, num_sites=len(model.sublayers))


@torch.no_grad()
def _run(trainer: Trainer, pl_module: LightningModule, probe: RoutingProbe, batch: dict) -> None:
    with trainer.precision_plugin.forward_context():
        pl_module.model(
            batch["input_ids"],
            batch.get("document_ids"),
            head=lambda hidden, weight: hidden,  # no logits: only the weights on the way are wanted
            residual=probe,
        )


def _summed(trainer: Trainer) -> Callable[[Tensor], Tensor]:
    if trainer.world_size == 1:
        return lambda sums: sums
    device = trainer.strategy.root_device
    return lambda sums: trainer.strategy.reduce(sums.to(device), reduce_op="sum").cpu()
