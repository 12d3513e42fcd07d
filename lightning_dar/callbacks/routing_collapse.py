"""An alarm for routing that has collapsed to the mean of its sources."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from lightning_dar.callbacks.measuring import Measuring
from lightning_dar.diagnostics.probe import NEAR_UNIFORM, RoutingProbe, SiteRouting, depth_third
from lightning_dar.errors import UsageError


class RoutingCollapse(Measuring):
    """Warns, or stops training, when the routing of the deepest third stays near uniform after warmup.

    Near means: the mean over the deepest third of sharpness - 1/n (largest routing weight, averaged over tokens, less
    what uniform weights would have) is at most `margin`. One warning until it has recovered; it names the sites.
    With `RoutingSharpness` at the same `every_n_steps` and `micro_batches` it costs nothing more. It never fires for
    a strategy without routing.

    Args:
        every_n_steps: optimizer steps between two measurements.
        micro_batches: micro-batches of such a step that are measured, at most, on each device.
        margin: largest mean of sharpness - 1/n that counts as collapsed, from 0 to 1.
        patience: measurements in a row after warmup, all of them collapsed, before the alarm.
        warmup_steps: optimizer steps that are not judged; by default those of the learning rate's warmup.
        stop: also stop training.
    """

    kind = RoutingProbe

    def __init__(
        self,
        every_n_steps: int = 50,
        micro_batches: int = 4,
        margin: float = NEAR_UNIFORM,
        patience: int = 10,
        warmup_steps: int | None = None,
        stop: bool = False,
    ):
        super().__init__(every_n_steps, micro_batches)
        if not 0 <= margin <= 1:
            raise UsageError(f"RoutingCollapse: margin={margin}; give a difference of weights, from 0 to 1")
        if patience < 1:
            raise UsageError(f"RoutingCollapse: patience={patience}; give 1 or more")
        self.margin, self.patience, self.warmup_steps, self.stop = margin, patience, warmup_steps, stop
        self._collapsed_at: list[int] = []  # steps of the latest measurements, one after the other

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._collapsed_at = []

    def state_dict(self) -> dict[str, Any]:
        return {"collapsed_at": self._collapsed_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._collapsed_at = list(state_dict["collapsed_at"])

    def measured(self, trainer: Trainer, pl_module: LightningModule, probe: RoutingProbe) -> None:
        warmup = pl_module.optimizer.warmup_steps if self.warmup_steps is None else self.warmup_steps
        sites = {site: routing for site, routing in probe.sites.items() if depth_third(site, probe.num_sites) == "deep"}
        if trainer.global_step <= warmup or not sites:
            return
        if sum(map(_above_uniform, sites.values())) <= self.margin * len(sites):
            self._collapsed_at.append(trainer.global_step)
        else:  # sharper, or not a number
            self._collapsed_at = []
        if len(self._collapsed_at) == self.patience:
            rank_zero_warn(self._message(sites))
            trainer.should_stop = trainer.should_stop or self.stop

    def _message(self, sites: dict[int, SiteRouting]) -> str:
        near = [str(site) for site, routing in sites.items() if _above_uniform(routing) <= self.margin]
        sharpness = sum(routing.sharpness for routing in sites.values()) / len(sites)
        uniform = sum(1 / routing.num_sources for routing in sites.values()) / len(sites)
        return (
            f"routing has collapsed: from step {self._collapsed_at[0]} to {self._collapsed_at[-1]} the deepest "
            f"third read its sources nearly uniformly (sharpness {sharpness:.3f}, uniform is {uniform:.3f}); sites "
            f"{', '.join(near)}" + ("; training stops" if self.stop else "")
        )


def _above_uniform(routing: SiteRouting) -> float:
    return routing.sharpness - 1 / routing.num_sources
