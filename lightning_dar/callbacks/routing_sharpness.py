"""Sharpness of the routing during training, and pictures of it."""

import os
from dataclasses import replace
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
from lightning_dar.charts.chart import Series
from lightning_dar.charts.page import check_drawing, picture, pixels
from lightning_dar.diagnostics.probe import DEPTHS, STATISTICS, RoutingProbe, SiteRouting, depth_third, mean_sharpness
from lightning_dar.diagnostics.routing_charts import by_site, line, shares, uniform, weights
from lightning_dar.run.loggers import kind_of, run_folder

Sites = dict[int, SiteRouting]


def draw_routing(sites: Sites, title: str) -> bytes:
    """A PNG: mean routing weight, site by source, beside each site's sharpness against uniform."""
    columns = max(routing.num_sources for routing in sites.values())
    by_source = {site: routing.mean_weights.tolist() for site, routing in sites.items()}
    heat_map = weights("what each site reads", {0: [], **by_source}, [str(source) for source in range(columns)])
    sharpness = by_site({"largest weight": sites}, "sharpness", "sharpness", "mean over tokens")
    sharpness = replace(sharpness, upright=True, series=[*sharpness.series, uniform("uniform, 1/n", sites)])
    return picture([heat_map, sharpness], title, across=True)


def draw_by_depth(sites: Sites, num_sites: int, title: str) -> bytes:
    """A PNG of three panels over the sites: sharpness against uniform, with the mean of each third of the depth;
    effective number of sources against their number; where the largest weight lies, as shares of tokens."""
    sharpness = by_site({"largest weight": sites}, "sharpness", "sharpness", "mean over tokens")
    thirds = [_third(third, sites, num_sites) for third in DEPTHS]
    references = [*(series for series in thirds if series is not None), uniform("uniform, 1/n", sites)]
    sharpness = replace(sharpness, series=[*sharpness.series, *references])
    effective = by_site({"exp(entropy)": sites}, "effective_sources", "effective number of sources", "sources")
    number = line("number of sources, n", sites, lambda site: site.num_sources, dashed=True)
    effective = replace(effective, series=[*effective.series, number])
    return picture([sharpness, effective, shares("source with the largest weight", sites)], title)


def _third(third: str, sites: Sites, num_sites: int) -> Series | None:
    """The mean over a third of the depth, as a level; None where it has no routed site."""
    inside = [site for site in sites if depth_third(site, num_sites) == third]
    if not inside:
        return None
    mean = mean_sharpness(sites, num_sites, third)
    return Series(name=f"{third} third: {mean:.3f}", x=[inside[0] - 0.4, inside[-1] + 0.4], y=[mean, mean])


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
