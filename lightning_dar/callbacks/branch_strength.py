"""How much of what a sublayer sees is routed, and whether the queries learn."""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from lightning_dar.callbacks.measuring import Measuring, by_depth, log_metrics, routes
from lightning_dar.diagnostics.probe import StreamProbe


class BranchStrength(Measuring):
    """Logs the routed branch against the stream that it is added to. Means over tokens of L2 norms over D:

    - `branch/strength`: |c_s r_s| / |h_s|
    - `branch/norm`: |c_s r_s|; where a read replaces the stream (`attnres`), |r_s|, and neither strength nor stream
    - `branch/stream_norm`: |h_s|
    - `branch/gate`: c_s, where there is a gate

    each as the mean over sites, with `_shallow`, `_middle` and `_deep` for the thirds of the depth, and by site as
    `branch_sites/NAME_07`. And for a strategy with a parameter `query`, a row a site, the L2 norm of its gradient
    before clipping: `branch/query_grad_norm` of the whole, `branch_sites/query_grad_norm_07` of a row.

    Arguments are those of `Measuring`.
    """

    kind = StreamProbe

    def measured(self, trainer: Trainer, pl_module: LightningModule, probe: StreamProbe) -> None:
        metrics = {}
        for name, field in (
            ("strength", "strength"),
            ("norm", "branch_norm"),
            ("stream_norm", "stream_norm"),
            ("gate", "gate"),
        ):
            found = {site: getattr(stream, field) for site, stream in probe.sites.items()}
            values = {site: value for site, value in found.items() if value is not None}
            metrics |= by_depth("branch", name, values, probe.num_sites)
        log_metrics(trainer, metrics, trainer.global_step)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        step = trainer.global_step + 1
        if not self.is_due(step) or not routes(pl_module):
            return
        norms, num_sites = query_grad_norms(pl_module), len(pl_module.model.sublayers)
        if norms is None or norms.shape not in ((num_sites,), (num_sites + 1,)):
            return
        metrics = {f"branch_sites/query_grad_norm_{site:02d}": norm for site, norm in enumerate(norms.tolist())}
        log_metrics(trainer, {"branch/query_grad_norm": norms.norm().item(), **metrics}, step)


def query_grad_norms(pl_module: LightningModule) -> Tensor | None:
    """[rows], the gradient's norm by row; None where the strategy has no `query`, or none that is trained."""
    query = getattr(pl_module.model.residual, "query", None)
    gradient = getattr(query, "grad", None)
    if gradient is None:
        return None
    if hasattr(gradient, "full_tensor"):  # a DTensor, sharded over the ranks, which all come here
        gradient = gradient.full_tensor()
    return torch.linalg.vector_norm(gradient, dim=-1, dtype=torch.float32)
