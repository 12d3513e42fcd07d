"""What the measuring callbacks should have logged for `delta-sublayer`: token by token in float64, from what the
embedding and the sublayers put out."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from lightning_dar.model import Transformer

Statistics = dict[str, dict[int, float]]


def by_hand(model: Transformer, batches: Iterable[dict[str, Tensor]], precision: torch.dtype) -> Statistics:
    """name -> site -> mean over the tokens of all batches."""
    outputs: list[list[Tensor]] = [[] for _ in range(1 + len(model.sublayers))]
    handles = [
        module.register_forward_hook(lambda _m, _a, out, to=outputs[number]: to.append(out.flatten(0, -2).double()))
        for number, module in enumerate((model.embed, *model.sublayers))
    ]
    with torch.no_grad(), torch.autocast("cpu", precision, enabled=precision != torch.float32):
        for batch in batches:
            model(batch["input_ids"])
    for handle in handles:
        handle.remove()
    values = torch.stack([torch.cat(parts) for parts in outputs], dim=1)  # [tokens, 1 + sites, D]
    statistics: Statistics = {}
    for site in range(1, len(model.sublayers)):
        rows = [_of_token(model, site, sources) for sources in values[:, : site + 1]]
        for name in rows[0]:
            statistics.setdefault(name, {})[site] = sum(row[name] for row in rows) / len(rows)
    return statistics


@torch.no_grad()
def _of_token(model: Transformer, site: int, sources: Tensor) -> dict[str, float]:
    """`sources` [n, D]: the embedding and the deltas so far."""
    count = len(sources)
    rms = (sources.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    logits = (sources / rms * model.residual.gain[site].double()) @ model.residual.query[site].double()
    weights = (logits - logits.max()).exp()
    weights = (weights / weights.sum()).tolist()
    entropy = -sum(weight * math.log(weight) for weight in weights)
    largest = weights.index(max(weights))
    read = sum(weight * source for weight, source in zip(weights, sources, strict=True))
    pairs = [(i, j) for i in range(count) for j in range(i)]
    branch, stream = read.norm().item(), sources.sum(0).norm().item()
    return {
        "routing/sharpness": max(weights),
        "routing/entropy": entropy / math.log(count),
        "routing/effective_sources": math.exp(entropy),
        "routing/share_embedding": float(largest == 0),
        "routing/share_newest": float(largest == count - 1),
        "routing/share_older": float(0 < largest < count - 1),
        "branch/strength": branch / stream,
        "branch/norm": branch,
        "branch/stream_norm": stream,
        "redundancy/cosine": sum(torch.cosine_similarity(sources[i], sources[j], 0).item() for i, j in pairs)
        / len(pairs),
    }
