"""The depth read in its plainest form: the twin against which every faster backend is tested.

    k_i = RMSNorm(v_i; gain, eps)      a = softmax_i(query . k_i)      r = sum_i a_i v_i

There is no 1/sqrt(D). Logits, softmax and sums are fp32 (float64 if a source is), also under autocast,
with one downcast at the end. Equation: Delta Attention Residuals, arXiv 2605.18855.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F


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
        values = _stack(sources)
        weights = _weights(values, query, gain, eps)
        read = torch.einsum("btn,nbtd->btd", weights, values)
    return read.to(reduce(torch.promote_types, (source.dtype for source in sources)))


def depth_weights(sources: Sequence[Tensor], query: Tensor, gain: Tensor, eps: float) -> Tensor:
    """The routing weights [B, T, n] (at least fp32) that `depth_read` sums with; same arguments."""
    with torch.autocast(query.device.type, enabled=False):
        return _weights(_stack(sources), query, gain, eps)


def _stack(sources: Sequence[Tensor]) -> Tensor:
    """[n, B, T, D] in at least fp32."""
    dtype = reduce(torch.promote_types, (source.dtype for source in sources), torch.float32)
    return torch.stack([source.to(dtype) for source in sources])


def _weights(values: Tensor, query: Tensor, gain: Tensor, eps: float) -> Tensor:
    keys = F.rms_norm(values, values.shape[-1:], gain.to(values.dtype), eps)
    return torch.einsum("nbtd,d->btn", keys, query.to(values.dtype)).softmax(-1)
