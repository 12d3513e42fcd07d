"""How long a step takes, as a range.

    step = micro-batches (products + depth reads) + communication + optimizer

Products run at a share of the GPU's peak, which in practice depends on kernels and widths; the depth reads and the
optimizer at a share of its memory's rate. `LOW` takes the shares that are easily reached, and adds communication in
full; in `HIGH` it is hidden behind the products as far as they last. Loading, logging, validation and checkpoints are
not counted, nor what the host takes to launch kernels, which rules where D is small.
"""

from dataclasses import dataclass

from lightning_dar.ops import DepthRead
from lightning_dar.plan.activations import checkpointed_share, reads_again
from lightning_dar.plan.communication import communication
from lightning_dar.plan.flops import model_flops, read_flops, sublayer_forward_flops
from lightning_dar.plan.parameters import Parameters
from lightning_dar.plan.setting import Setting
from lightning_dar.plan.trace import Trace
from lightning_dar.plan.traffic import read_traffic

ADAMW_TRAFFIC = 7
"""Numbers that AdamW moves a parameter: weight, gradient and two averages read; weight and averages written."""

MUON_TRAFFIC = 5
"""One average instead of two. The iteration is counted by its products, which every GPU does for all matrices."""


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """Shares of what the data sheet says."""

    products: float
    bandwidth: float
    overlap: bool


LOW = Assumptions(products=0.35, bandwidth=0.5, overlap=False)
HIGH = Assumptions(products=0.55, bandwidth=0.9, overlap=True)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one optimizer step, by part."""

    products: float
    depth_reads: float
    communication: float
    optimizer: float

    @property
    def seconds(self) -> float:
        return self.products + self.depth_reads + self.communication + self.optimizer


def step(
    setting: Setting, parameters: Parameters, trace: Trace, assumed: Assumptions, depth_read: DepthRead = "auto"
) -> Step:
    """One optimizer step."""
    device, tokens = setting.device, setting.tokens_per_batch * setting.accumulate
    peak, rate = device.peak(setting.precision) * assumed.products, device.bandwidth * assumed.bandwidth
    products = tokens * step_flops(setting) / peak
    reads = read_traffic(setting.config.hidden_size, trace, depth_read) * (1 + reads_again(setting.checkpointing) / 3)
    exchange = communication(setting, parameters).seconds
    return Step(
        products=products + tokens * read_flops(setting.config.hidden_size, trace.sources_read) / peak,
        depth_reads=tokens * reads / rate,
        communication=max(0.0, exchange - products) if assumed.overlap else exchange,
        optimizer=_optimizer(setting, parameters, rate, device.peak("bf16-mixed") * assumed.products),
    )


def _optimizer(setting: Setting, parameters: Parameters, rate: float, peak: float) -> float:
    """Seconds, at `rate` bytes/s and `peak` FLOP/s."""
    muon = parameters.linear if setting.optimizer == "muon" else 0
    moved = ADAMW_TRAFFIC * (parameters.total - muon) + MUON_TRAFFIC * muon
    own = moved * setting.dtypes.weights.itemsize / (setting.gpus if setting.sharded else 1)
    return own / rate + (parameters.orthogonalising / peak if muon else 0.0)


def step_flops(setting: Setting) -> float:
    """A token, with the forward of the sublayers that is done again."""
    again = sublayer_forward_flops(setting.config, setting.seq_len) * checkpointed_share(setting.checkpointing)
    return model_flops(setting.config, setting.seq_len) + again
