"""The depth read by its definition, in plain operations: every faster backend is tested against it.

    k_i = RMSNorm(v_i; gain, eps)      a = softmax_i(query . k_i)      r = sum_i a_i v_i

There is no 1/sqrt(D). Logits, softmax and sums are fp32 (float64 if a source is), also under autocast,
with one downcast at the end. Equation: Delta Attention Residuals, arXiv 2605.18855.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_dar.ops.numerics import inverse_rms


def depth_read(sources: Sequence[Tensor], query: Tensor, gain: Tensor, eps: float) -> Tensor:
    """The weighted sum of the sources.

    Args:
        sources: n >= 1 tensors [B, T, D], oldest first, of any float dtypes.
        query: [D], the site's query.
        gain: [D], the site's key-norm gain.
        eps: epsilon of the key norm.

    Returns:
        r [B, T, D] in the sources' common dtype.
    """
    with torch.autocast(query.device.type, enabled=False):
        dtype = _common_dtype(sources)
        values = torch.stack([source.to(dtype) for source in sources])
        keys = F.rms_norm(values, values.shape[-1:], gain.to(dtype), eps)
        weights = torch.einsum("nbtd,d->btn", keys, query.to(dtype)).softmax(-1)
        read = torch.einsum("btn,nbtd->btd", weights, values)
    return read.to(reduce(torch.promote_types, (source.dtype for source in sources)))


def depth_weights(sources: Sequence[Tensor], query: Tensor, gain: Tensor, eps: float) -> Tensor:
    """The routing weights [B, T, n] (at least fp32) that `depth_read` sums with; same arguments. Without
    gradient, so source by source: stacking them takes several times as long."""
    dtype = _common_dtype(sources)
    with torch.autocast(query.device.type, enabled=False):
        scaled = query.to(dtype) * gain.to(dtype)
        logits = [source.to(dtype) @ scaled * inverse_rms(source, eps, dtype) for source in sources]
        return torch.stack(logits, -1).softmax(-1)


def _common_dtype(sources: Sequence[Tensor]) -> torch.dtype:
    return reduce(torch.promote_types, (source.dtype for source in sources), torch.float32)
