"""Do the sources say the same? Cumulative states do, deltas should not."""

from lightning.pytorch import LightningModule, Trainer

from lightning_dar.callbacks.measuring import Measuring, by_depth, log_metrics
from lightning_dar.diagnostics.probe import StreamProbe


class SourceRedundancy(Measuring):
    """Logs the mean pairwise cosine of the sources that a site reads, the mean over tokens: 1 where all point the same
    way, 0 where they are orthogonal.

    As `redundancy/cosine` (all sites with two sources or more), `redundancy/cosine_shallow`, `_middle` and `_deep`
    (thirds of the depth), and `redundancy_sites/cosine_07`. With `BranchStrength` at the same `every_n_steps` and
    `micro_batches` it costs nothing more. Arguments are those of `Measuring`.
    """

    kind = StreamProbe

    def measured(self, trainer: Trainer, pl_module: LightningModule, probe: StreamProbe) -> None:
        found = {site: stream.redundancy for site, stream in probe.sites.items()}
        values = {site: value for site, value in found.items() if value is not None}
        log_metrics(trainer, by_depth("redundancy", "cosine", values, probe.num_sites), trainer.global_step)
