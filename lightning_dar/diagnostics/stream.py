"""Measuring what routing adds to the stream, and how much its sources say the same.

probe = StreamProbe(model.residual, num_sites=len(model.sublayers))
model(input_ids, residual=probe)
probe.sites[5].strength, probe.sites[5].redundancy
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dar.diagnostics.sums import SiteSums, counted, in_double
from lightning_dar.diagnostics.wrapper import Watched
from lightning_dar.residual.base import DepthRouting, Residual


@dataclass(kw_only=True)
class SiteStream:
    """Means over tokens at one site, of L2 norms over D."""

    tokens: float
    num_sources: int

    branch_norm: float
    """|c_s r_s|; where the read replaces the stream, that of the read itself."""

    stream_norm: float | None
    """|h_s|; None where the read replaces the stream."""

    strength: float | None
    """|c_s r_s| / |h_s|, the mean of the ratios, 0 at a token whose stream is zero; None likewise."""

    gate: float | None
    """c_s; None where there is no gate."""

    redundancy: float | None
    """Mean pairwise cosine of the sources; None for fewer than two."""


class StreamProbe(Watched):
    """Runs `residual` unchanged and accumulates, over any number of forwards, a `SiteStream` for every site that
    reads a source. The final read of a strategy that has one counts as site `num_sites`."""

    def __init__(self, residual: Residual, num_sites: int):
        super().__init__(residual, num_sites)
        self._sums = SiteSums()  # [6]: tokens, and the fields of a SiteStream from `branch_norm` on
        self._reads: dict[int, tuple[int, bool, bool]] = {}  # site -> number of sources, is additive, is gated

    @property
    def sites(self) -> dict[int, SiteStream]:
        """What was measured, by site."""
        return {
            site: _site_stream(sums.tolist(), *self._reads[site]) for site, sums in self._sums.items() if sums[0] > 0
        }

    def reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Adds up the ranks, see `SiteSums`."""
        self._sums.reduce(sum_over_ranks)

    def seen(self, site: int, routing: DepthRouting, tokens: Tensor | None = None) -> None:
        dtype, count = routing.weights.dtype, len(routing.sources)
        branch = torch.linalg.vector_norm(routing.branch(), dim=-1)
        zeros = torch.zeros_like(branch)
        stream = zeros if routing.base is None else torch.linalg.vector_norm(routing.base, dim=-1, dtype=dtype)
        gate = zeros if routing.scale is None else zeros + routing.scale
        cosine = mean_pairwise_cosine(routing.sources, dtype) if count > 1 else zeros
        ratio = torch.where(stream > 0, branch / stream, 0)
        by_token = torch.stack([torch.ones_like(branch), branch, stream, ratio, gate, cosine], dim=-1)
        self._sums.add(site, in_double(counted(by_token.flatten(0, -2), tokens)).sum(0))
        self._reads[site] = (count, routing.base is not None, routing.scale is not None)


def mean_pairwise_cosine(sources: Sequence[Tensor], dtype: torch.dtype = torch.float32) -> Tensor:
    """(|sum_i u_i|^2 - sum_i |u_i|^2) / (n (n - 1)) with u_i = v_i / |v_i|: O(n D) a token, not O(n^2 D).

    Args:
        sources: n >= 2 tensors [B, T, D]. A zero vector counts as orthogonal to all others.
        dtype: to compute in.

    Returns:
        [B, T] in `dtype`.
    """
    total = torch.zeros_like(sources[0], dtype=dtype)
    count = total.new_zeros(total.shape[:-1])
    for source in sources:
        norm = torch.linalg.vector_norm(source, dim=-1, dtype=dtype)
        is_direction = norm > torch.finfo(dtype).tiny
        inverse = torch.where(is_direction, 1 / norm, 0)
        total.addcmul_(source.to(dtype), inverse[..., None])
        count += is_direction
    return (total.square().sum(-1) - count) / (len(sources) * (len(sources) - 1))


def _site_stream(sums: list[float], num_sources: int, is_additive: bool, is_gated: bool) -> SiteStream:
    tokens, branch, stream, ratio, gate, cosine = sums
    return SiteStream(
        tokens=tokens,
        num_sources=num_sources,
        branch_norm=branch / tokens,
        stream_norm=stream / tokens if is_additive else None,
        strength=ratio / tokens if is_additive else None,
        gate=gate / tokens if is_gated else None,
        redundancy=cosine / tokens if num_sources > 1 else None,
    )
