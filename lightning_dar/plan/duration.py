"""The time of a step: FLOPs, bytes that depth reads move, communication, and what they take on a GPU.

FLOPs are those of `lightning_dar.model.flops`. The reads move, in sources [M, D], forward:

    two_phase     a chunk: its finished sources once, and the result of phase one written; a read: that result, and the
                  sources written since; a source: read, written to the buffer, read for its scores
    fused, fla    a read: its n sources
    naive         a read: 5 n: stacked (read, written), normed (read, written), and summed

Backward moves twice that. The result of phase one is fp32, what is stacked too.

    ddp           gradients summed over all GPUs once: 2 (g-1)/g N, by rings
    fsdp, fsdp2   every micro-batch: weights gathered in the forward and again in the backward, gradients summed and
                  scattered: (g-1)/g N each. The root (embedding, head, routing) is gathered once. Muon gathers its
                  updates, once a step.

Rings run within nodes over the GPUs' links, between nodes over all network cards of a node together: the slower of the
two sets the rate.

    step = micro-batches (products + depth reads) + communication + optimizer

Products run at a share of the GPU's peak, which in practice depends on kernels and widths; the depth reads and the
optimizer at a share of its memory's rate. `LOW` takes the shares that are easily reached, and adds communication in
full; in `HIGH` it is hidden behind the products as far as they last. Loading, logging, validation and checkpoints are
not counted, nor what the host takes to launch kernels, which rules where D is small.
"""

from bisect import bisect_left
from dataclasses import dataclass

from lightning_dar.model.costs import FP32
from lightning_dar.model.flops import model_flops, read_flops, sublayer_forward_flops
from lightning_dar.ops import DepthRead
from lightning_dar.ops.two_phase.forward import CHUNK_ROWS, chunk_start
from lightning_dar.plan.memory import Parameters, checkpointed_share, reads_again
from lightning_dar.plan.setting import Setting
from lightning_dar.plan.trace import Trace

BACKWARD = 2


def read_traffic(hidden_size: int, trace: Trace, depth_read: DepthRead) -> float:
    """Bytes a token, forward and backward."""
    if depth_read == "naive":
        width = hidden_size * FP32
        sources = 5 * trace.sources_read
    elif depth_read in ("fused", "fla"):
        width, sources = trace.source_bytes, trace.sources_read
    else:
        in_buffer, in_fp32 = two_phase_sources(trace)
        return (1 + BACKWARD) * (in_buffer * trace.source_bytes + in_fp32 * hidden_size * FP32)
    return (1 + BACKWARD) * sources * width


def two_phase_sources(trace: Trace) -> tuple[int, int]:
    """Sources that the reads and writes of one forward move, and results of phase one."""
    in_buffer, in_fp32 = 3 * len(trace.written), 0
    for start in range(0, trace.rows, CHUNK_ROWS):
        rows = [read for read in trace.reads if chunk_start(read.row) == start]
        finished = bisect_left(trace.written, start)
        in_buffer += finished + sum(read.kept - finished + read.private for read in rows)
        in_fp32 += (min(CHUNK_ROWS, trace.rows - start) + len(rows)) * (finished > 0)
    return in_buffer, in_fp32


@dataclass(frozen=True, kw_only=True)
class Communication:
    """The communication of one optimizer step, per GPU."""

    bytes: int
    seconds: float


def communication(setting: Setting, parameters: Parameters) -> Communication:
    """Counts the communication of one optimizer step, without what computing hides."""
    sent = _volume(setting, parameters) * (setting.gpus - 1) / setting.gpus
    return Communication(bytes=int(sent), seconds=sent / ring_rate(setting))


def ring_rate(setting: Setting) -> float:
    """Bytes/s that each GPU passes on."""
    device = setting.device
    if setting.gpus <= setting.gpus_per_node:
        return device.link
    return min(device.link, device.node_network)


def _volume(setting: Setting, parameters: Parameters) -> float:
    weights, compute = setting.dtypes.weights.itemsize, setting.dtypes.compute.itemsize
    if setting.strategy == "ddp":
        return 2 * parameters.total * weights
    if not setting.sharded:
        return 0
    sublayers = parameters.total - parameters.root
    gradients = FP32 if setting.dtypes.autocast else weights
    batch = sublayers * (2 * compute + gradients) + parameters.root * (weights + gradients)
    updates = parameters.linear * weights if setting.optimizer == "muon" else 0
    return batch * setting.accumulate + updates


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
