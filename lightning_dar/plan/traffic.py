"""What the depth reads move between a GPU and its memory (docs/depth_read.md has the counting).

In sources [M, D], forward:

    two_phase     a chunk: its finished sources once, and the result of phase one written; a read: that result, and the
                  sources written since; a source: read, written to the buffer, read for its scores
    fused, fla    a read: its n sources
    naive         a read: 5 n: stacked (read, written), normed (read, written), and summed

Backward moves twice that. The result of phase one is fp32, what is stacked too.
"""

from bisect import bisect_left

from lightning_dar.model.costs import FP32
from lightning_dar.ops import DepthRead
from lightning_dar.ops.two_phase.forward import CHUNK_ROWS, chunk_start
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
