"""Is routing sharp, or has it collapsed to the mean of its sources?"""

import os
from typing import Any

import fsspec
from lightning.pytorch import LightningModule, Trainer

from lightning_dar.callbacks.measuring import (
    Measuring,
    by_depth,
    log_metrics,
    logged_step,
    new_probe,
    routes,
    sum_over_ranks,
    watch,
)
from lightning_dar.callbacks.routing_pictures import draw_by_depth, draw_routing
from lightning_dar.charts.page import check_drawing, pixels
from lightning_dar.diagnostics.probe import STATISTICS, RoutingProbe, SiteRouting, mean_sharpness
from lightning_dar.run.loggers import kind_of, run_folder


class RoutingSharpness(Measuring):
    """Logs how the routing weights are spread: the means over tokens of the largest weight (`sharpness`), of
    H / log n (`entropy`) and of exp(H) (`effective_sources`), and the shares of tokens whose largest weight lies on the
    embedding, the newest or an older source (`share_embedding`, `share_newest`, `share_older`).

    In training each of them as `routing/NAME` (all routed sites), `routing/NAME_shallow`, `_middle` and `_deep` (thirds
    of the depth) and `routing_sites/NAME_07`. In validation, on its first batches: `val/sharpness`,
    `val/sharpness_deep`, and two pictures, as images in the loggers that take them and the last ones as files in the
    run's folder: `routing/heat_map` (routing.png), site by source, `routing/by_depth` (routing_by_depth.png). A site
    with fewer than two sources routes nothing and is left out, and so is `standard` altogether.

    Args:
        every_n_steps: optimizer steps between two measurements in training.
        micro_batches: micro-batches of such a step that are measured, at most, on each device.
        val_batches: validation batches that are measured, on each device.
    """

    kind = RoutingProbe

    def __init__(self, every_n_steps: int = 50, micro_batches: int = 4, val_batches: int = 4):
        super().__init__(every_n_steps, micro_batches)
        self.val_batches = val_batches
        self.pictures: dict[str, str] = {}
        self._val_probe: RoutingProbe | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if routes(pl_module):
            check_drawing()

    def measured(self, trainer: Trainer, pl_module: LightningModule, probe: RoutingProbe) -> None:
        sites, metrics = probe.sites, {}
        for name in STATISTICS:
            values = {site: getattr(routing, name) for site, routing in sites.items()}
            metrics |= by_depth("routing", name, values, probe.num_sites)
        log_metrics(trainer, metrics, trainer.global_step)
        if sites:
            pl_module.log("sharpness", metrics["routing/sharpness"], prog_bar=True, logger=False)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._val_probe = new_probe(RoutingProbe, pl_module) if routes(pl_module) else None

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if self._val_probe is not None and batch_idx < self.val_batches:
            watch(trainer, pl_module, [self._val_probe], batch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        probe, self._val_probe = self._val_probe, None
        if probe is None:
            return
        probe.reduce(sum_over_ranks(trainer))
        sites = probe.sites
        if not sites:
            return
        deep = mean_sharpness(sites, probe.num_sites, third="deep")
        pl_module.log("val/sharpness", mean_sharpness(sites, probe.num_sites), sync_dist=True)  # equal on all ranks
        pl_module.log("val/sharpness_deep", deep, sync_dist=True)
        if trainer.sanity_checking or trainer.logger is None:
            return
        folder = run_folder(trainer)  # asks all ranks
        if trainer.is_global_zero:
            self._draw(trainer, sites, probe.num_sites, folder)

    def _draw(self, trainer: Trainer, sites: dict[int, SiteRouting], num_sites: int, folder: str) -> None:
        title = f"step {trainer.global_step}"
        for name, file, png in (
            ("heat map", "routing.png", draw_routing(sites, title)),
            ("by depth", "routing_by_depth.png", draw_by_depth(sites, num_sites, title)),
        ):
            tag, picture = f"routing/{name.replace(' ', '_')}", pixels(png)
            for logger in trainer.loggers:
                kind_of(type(logger)).log_picture(logger, tag, picture, logged_step(trainer.global_step))
            self.pictures[name] = os.path.join(folder, file)
            with fsspec.open(self.pictures[name], "wb", auto_mkdir=True) as file:  # it may be behind a URL
                file.write(png)
