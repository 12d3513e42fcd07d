"""Bytes held for backward: what autograd keeps of one forward, a token at a time.

    none        all that the sublayers save, and what the depth reads need
    sublayer    each sublayer's input; the sublayer itself is run again in backward
    full        the stream at each layer's start; reads and writes are run again too, the sources are held
    0.5         `full` for that share of the layers

What a sublayer saves it says itself (`Sublayer.saved_bytes`). Norms keep their input and a scalar; see `Saving` for
`composite_norm`.
"""

from dataclasses import dataclass

from lightning_dar.model import TransformerConfig, sublayer_classes
from lightning_dar.model.costs import FP32, Saving
from lightning_dar.model.layer import layer_sites
from lightning_dar.ops import DepthRead
from lightning_dar.ops.two_phase.forward import CHUNK_ROWS, keeps_phase_one
from lightning_dar.plan.precision import Precision
from lightning_dar.plan.trace import Trace

MODES = ("none", "sublayer", "full")
Checkpointing = str | float


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
    """Of one forward without the loss."""
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
