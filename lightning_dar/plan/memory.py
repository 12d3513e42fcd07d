"""Bytes that one GPU needs, by part.

    weights       N; with a shard for every GPU under FSDP, and then what is gathered for computing
    gradients     N likewise; under DDP once more, in the buckets that are sent
    optimizer     AdamW's two averages; of what Muon trains, one
    activations   from the forward to the backward (`activations.py`)
    sources       what the depth reads hold of it
    logits        a chunk of them, the gradients of the hidden states, and of the head where it is not yet in
                  `gradients` (`training/loss.py`)
    work          the largest that comes and goes: a sublayer computed again and its gradients, the depth reads' own
                  buffers; or, where it is larger, what the optimizer's step takes

The sum is what tensors take at the peak of a step, with all gradients there as they are from the second micro-batch
on. A GPU has less to give than its memory: `SPARE`.
"""

from dataclasses import asdict, dataclass

from lightning_dar.model import TransformerConfig, sublayer_classes
from lightning_dar.model.costs import FP32, Saving
from lightning_dar.ops import DepthRead
from lightning_dar.ops.two_phase.forward import CHUNK_ROWS
from lightning_dar.plan.activations import Held, held
from lightning_dar.plan.parameters import Parameters
from lightning_dar.plan.setting import Setting
from lightning_dar.plan.trace import Trace

CHUNK_LOGITS = 2**26
"""Elements of the logits that the loss has at a time: the default of `chunked_cross_entropy`."""

SPARE = 0.08
"""Share of a GPU's memory that goes to CUDA itself, to communication buffers and to gaps between tensors."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes by part."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    sources: int
    logits: int
    work: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


def memory(setting: Setting, parameters: Parameters, trace: Trace, depth_read: DepthRead = "auto") -> Memory:
    """At the peak of a training step, on each GPU."""
    dtypes, tokens = setting.dtypes, setting.tokens_per_batch
    kept = held(setting.config, trace, dtypes, checkpointing=setting.checkpointing, depth_read=depth_read)
    every = parameters.total * dtypes.weights.itemsize
    own = -(-every // setting.gpus) if setting.sharded else every
    activations, sources = tokens * kept.sublayers, tokens * kept.sources
    logits = _logits(setting)
    gathered, gathered_gradients = _gathered(setting, parameters)
    busy = tokens * (_sublayer_work(setting, kept.recomputed) + read_work(setting.config, trace, depth_read, kept))
    shared = setting.gpus if setting.sharded else 1
    muon = parameters.linear * dtypes.weights.itemsize // shared if setting.optimizer == "muon" else 0
    # Lightning clips, so AdamW is not fused: the roots of one average, of all that it trains.
    step = own - muon if dtypes.autocast else 0
    return Memory(
        weights=own + gathered,
        gradients=own * (2 if setting.strategy == "ddp" else 1) + gathered_gradients,
        optimizer=2 * own - muon,
        activations=activations,
        sources=sources,
        logits=logits,
        work=max(busy, step - activations - sources - logits, 0),
    )


def usable(setting: Setting) -> int:
    """Bytes of a GPU that tensors can take."""
    return int(setting.device.memory * (1 - SPARE))


def _logits(setting: Setting) -> int:
    config, dtypes, tokens = setting.config, setting.dtypes, setting.tokens_per_batch
    head = config.vocab_size * config.hidden_size
    chunk = min(CHUNK_LOGITS, tokens * config.vocab_size) * (dtypes.compute.itemsize + 2 * FP32)
    # The head's gradient becomes that of the weight, unless one is there already or has another dtype.
    twice = dtypes.weights.itemsize != FP32 or (setting.accumulate > 1 and not setting.sharded)
    return chunk + tokens * config.hidden_size * dtypes.stream.itemsize + head * FP32 * twice


def _gathered(setting: Setting, parameters: Parameters) -> tuple[int, int]:
    """Weights beside a GPU's own, and their gradients. Autocast keeps a copy of every fp32 weight that a product
    takes. FSDP gathers two sublayers at a time, one ahead, and the root for the whole step."""
    dtypes, head = setting.dtypes, setting.config.vocab_size * setting.config.hidden_size
    copies = dtypes.compute.itemsize * head if dtypes.autocast else 0
    if not setting.sharded:
        return copies + (dtypes.compute.itemsize * parameters.linear if dtypes.autocast else 0), 0
    root = parameters.root * dtypes.weights.itemsize
    sublayers = 2 * parameters.largest_sublayer
    return copies + root + sublayers * dtypes.compute.itemsize, root + sublayers * FP32


def _sublayer_work(setting: Setting, recomputed: int) -> int:
    """Bytes per token: a region computed again, and the gradients within the larger sublayer."""
    saving = Saving(compute=setting.dtypes.compute, autocast=setting.dtypes.autocast)
    inner = max(sublayer.gradient_bytes(setting.config, saving) for sublayer in set(sublayer_classes(setting.config)))
    return recomputed + inner + 2 * setting.config.hidden_size * FP32


def read_work(config: TransformerConfig, trace: Trace, depth_read: DepthRead, kept: Held) -> int:
    """Bytes a token that the depth reads take in a backward: gradients of sources and, in two phases, what the rows
    leave for them, as far as it outgrows the activations that the same backward lets go."""
    if not trace.reads:
        return 0
    vector, most = config.hidden_size * FP32, max(read.sources for read in trace.reads)
    if depth_read in ("naive", "fused", "fla"):
        return most * (3 * vector if depth_read == "naive" else trace.source_bytes) + len(trace.written) * vector
    chunks = 2 * min(CHUNK_ROWS, trace.rows) * vector if trace.written else 0  # phase one, and its sources' gradients
    scores = 2 * len(trace.written) * trace.rows * FP32
    left = trace.rows * trace.source_bytes
    first = ((trace.rows - 1) % CHUNK_ROWS + 1) * trace.source_bytes  # the last chunk's, while all else is still there
    return chunks + scores + max(first, left - kept.sublayers)
