"""The bytes that a run holds on a GPU: parameters, gradients, optimizer, activations.

    none        all that the sublayers save, and what the depth reads need
    sublayer    each sublayer's input; the sublayer itself is run again in backward
    full        the stream at each layer's start; reads and writes are run again too, the sources are held
    0.5         `full` for that share of the layers

What a sublayer saves it says itself (`Sublayer.saved_bytes`). Norms keep their input and a scalar; see `Saving` for
`composite_norm`.

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

from dataclasses import asdict, dataclass, replace

from lightning_dar.checkpoint.load import build_on_meta
from lightning_dar.model import TransformerConfig, sublayer_classes
from lightning_dar.model.costs import FP32, Saving
from lightning_dar.model.layer import layer_sites
from lightning_dar.ops import DepthRead
from lightning_dar.ops.two_phase.forward import CHUNK_ROWS, keeps_phase_one
from lightning_dar.plan.setting import Checkpointing, Precision, Setting
from lightning_dar.plan.trace import Trace
from lightning_dar.residual import ResidualConfig

NEWTON_SCHULZ_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Numbers of parameters."""

    total: int
    routing: int
    """What the residual strategy owns."""

    linear: int
    """Weight matrices of the sublayers: what Muon trains."""

    orthogonalising: int
    """FLOPs of Muon's iteration over all of them."""

    root: int
    """Embedding, head, last norm and routing: what no sublayer owns, and FSDP2 keeps gathered through a step."""

    largest_sublayer: int


def count_parameters(config: TransformerConfig, residual: ResidualConfig) -> Parameters:
    """Exact, shared ones once. Raises UsageError for sizes, a strategy or options that cannot work."""
    model = build_on_meta(config, replace(residual, depth_read="naive"))  # the others may need what is not here
    sublayers = [sum(parameter.numel() for parameter in sublayer.parameters()) for sublayer in model.sublayers]
    matrices = [parameter for parameter in model.sublayers.parameters() if parameter.ndim == 2]
    total = sum(parameter.numel() for parameter in model.parameters())
    return Parameters(
        total=total,
        routing=sum(parameter.numel() for parameter in model.residual.parameters()),
        linear=sum(matrix.numel() for matrix in matrices),
        orthogonalising=sum(newton_schulz_flops(*matrix.shape) for matrix in matrices),
        root=total - sum(sublayers),
        largest_sublayer=max(sublayers),
    )


def newton_schulz_flops(rows: int, columns: int) -> int:
    """FLOPs of the five iterations that orthogonalise a matrix [m, n], m <= n: X X^T, its square, and their sum times
    X."""
    short, long = sorted((rows, columns))
    return NEWTON_SCHULZ_STEPS * 2 * short * short * (2 * long + short)


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes a token from the forward to the backward."""

    sublayers: int
    """What sublayers save, or what their recomputation starts from; and the last norm."""

    sources: int
    """What depth reads hold: the sources, their norms, what single reads see."""

    recomputed: int
    """At most held again while one region is run a second time; 0 where nothing is."""


def held(
    config: TransformerConfig,
    trace: Trace,
    precision: Precision,
    *,
    checkpointing: Checkpointing = "none",
    depth_read: DepthRead = "auto",
    composite_norm: bool = False,
) -> Held:
    """Counts the bytes that one forward without the loss holds."""
    *inputs, hidden = trace.inputs
    saving = Saving(compute=precision.compute, autocast=precision.autocast, composite_norm=composite_norm)
    sublayers = sublayer_classes(config)
    sites = [cls.saved_bytes(config, seen, saving) for cls, seen in zip(sublayers, inputs, strict=True)]
    layers = [sum(sites[site] for site in layer) for layer in layer_sites(config.num_layers)]
    if checkpointing == "sublayer":
        kept, again = sum(config.hidden_size * dtype.itemsize for seen in inputs for dtype in seen), max(sites)
    else:
        cut = int(checkpointed_share(checkpointing) * len(layers))
        kept, again = trace.starts * cut // len(layers) + sum(layers[cut:]), max(layers[:cut], default=0)
    kept += saving.norm(config.hidden_size, 1, hidden[0])
    sources = source_bytes(config, trace, depth_read, reads_again(checkpointing))
    return Held(sublayers=kept, sources=sources, recomputed=again)


def checkpointed_share(checkpointing: Checkpointing) -> float:
    """Share of the sublayers that are run again in backward."""
    return float(checkpointing != "none") if isinstance(checkpointing, str) else checkpointing


def reads_again(checkpointing: Checkpointing) -> float:
    """Share of the depth reads that are run again in backward: those inside of checkpointed layers."""
    return 0.0 if checkpointing == "sublayer" else checkpointed_share(checkpointing)


def source_bytes(config: TransformerConfig, trace: Trace, depth_read: DepthRead, again: float) -> int:
    """What the reads of a forward hold for backward, beside the inputs of the sublayers; a token.

    Args:
        config: the architecture.
        trace: the strategy's reads and writes.
        depth_read: the backend.
        again: share of the reads that are run again in backward.
    """
    own = 1 - again  # of what single reads need
    if _by_reference(depth_read):
        return int(trace.referenced * own + trace.beside_starts * again)
    stacked = [read for read in trace.reads if depth_read == "naive" or not read.kept]
    total = sum((1 if read.final else own) * read.sources * (3 * config.hidden_size + 2) * FP32 for read in stacked)
    if depth_read == "naive":
        return int(total + trace.beside_starts * again)
    total += trace.private * own + trace.private_final
    return int(total + trace.capacity * (trace.source_bytes + FP32) + phase_one_bytes(config, trace) * own)


def phase_one_bytes(config: TransformerConfig, trace: Trace) -> int:
    """What `two_phase` keeps of phase one a token, where it keeps it: chunks that begin after the first source."""
    if not keeps_phase_one(trace.capacity, trace.rows, trace.source_bytes, config.hidden_size * FP32):
        return 0
    starts = [start for start in range(0, trace.rows, CHUNK_ROWS) if any(after < start for after in trace.written)]
    return sum(min(CHUNK_ROWS, trace.rows - start) for start in starts) * (config.hidden_size + 1) * FP32


def _by_reference(depth_read: DepthRead) -> bool:
    return depth_read in ("fused", "fla")


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
