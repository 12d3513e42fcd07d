"""A network whose depth reads are watched: routing weights, sharpness, the strength of the branch.

    probe = RoutingProbe(model.residual, num_sites=len(model.sublayers))
    model(input_ids, residual=probe)
    probe.sites[5].sharpness

No flag on the strategy, nothing held between measurements; training forwards never pass through it.

probe = StreamProbe(model.residual, num_sites=len(model.sublayers))
model(input_ids, residual=probe)
probe.sites[5].strength, probe.sites[5].redundancy
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_dar.diagnostics.interventions import Watched
from lightning_dar.diagnostics.statistics import SiteSums, counted, in_double
from lightning_dar.residual.base import DepthRouting, Residual

STATISTICS = ("sharpness", "entropy", "effective_sources", "share_embedding", "share_newest", "share_older")
DEPTHS = ("shallow", "middle", "deep")
NEAR_UNIFORM = 0.02  # sharpness above 1/n, in the deepest third, up to which routing counts as collapsed


@dataclass(kw_only=True)
class SiteRouting:
    """Sums over tokens of one site's routing weights, and what they say."""

    tokens: float
    max_sum: float
    entropy_sum: float  # nats
    effective_sum: float
    embedding_sum: float  # of tokens whose largest weight lies on the embedding, and on the newest source
    newest_sum: float
    weight_sums: Tensor  # [n]

    @property
    def num_sources(self) -> int:
        return len(self.weight_sums)

    @property
    def sharpness(self) -> float:
        """Mean over tokens of the largest routing weight, from 1/n (uniform) to 1."""
        return self.max_sum / self.tokens

    @property
    def entropy(self) -> float:
        """Mean over tokens of H / log n, from 0 (one source) to 1 (uniform)."""
        return self.entropy_sum / (self.tokens * math.log(self.num_sources))

    @property
    def effective_sources(self) -> float:
        """Mean over tokens of exp(H), from 1 (one source) to n (uniform)."""
        return self.effective_sum / self.tokens

    @property
    def share_embedding(self) -> float:
        """Share of tokens whose largest weight lies on the embedding."""
        return self.embedding_sum / self.tokens

    @property
    def share_newest(self) -> float:
        """Share of tokens whose largest weight lies on the last source, unless that is the embedding."""
        return self.newest_sum / self.tokens

    @property
    def share_older(self) -> float:
        """Share of tokens whose largest weight lies on any other source; a null source is one of these."""
        return max(0.0, 1 - self.share_embedding - self.share_newest)  # rounding may leave -1e-16

    @property
    def mean_weights(self) -> Tensor:
        """[n], the mean routing weight of each source."""
        return self.weight_sums / self.tokens


class RoutingProbe(Watched):
    """Runs `residual` unchanged and accumulates, over any number of forwards, a `SiteRouting` per site.

    Sites that read fewer than two sources are left out: there is nothing to route. The final read of a strategy
    that has one counts as site `num_sites`. Sources that share a token's largest weight share the token too, so
    that uniform weights give each source 1/n of the tokens.
    """

    def __init__(self, residual: Residual, num_sites: int):
        super().__init__(residual, num_sites)
        self._sums = SiteSums()  # [6 + n]: the fields of a SiteRouting, in order

    @property
    def sites(self) -> dict[int, SiteRouting]:
        """What was measured, by site."""
        return {site: _site_routing(sums) for site, sums in self._sums.items() if sums[0] > 0}

    def reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Adds up the ranks, see `SiteSums`."""
        self._sums.reduce(sum_over_ranks)

    def seen(self, site: int, routing: DepthRouting, tokens: Tensor | None = None) -> None:
        weights = in_double(counted(routing.weights.flatten(0, -2), tokens))
        if weights.shape[-1] < 2:
            return
        largest, entropy = weights.amax(-1, keepdim=True), torch.special.entr(weights).sum(-1)
        at_largest = weights == largest
        shares = (at_largest / at_largest.sum(-1, keepdim=True, dtype=weights.dtype)).sum(0)  # [n], of all tokens
        last = weights.shape[-1] - 1
        nothing = shares.new_zeros(())
        statistics = [
            nothing + len(weights),
            largest.sum(),
            entropy.sum(),
            entropy.exp().sum(),
            nothing if routing.embedding is None else shares[routing.embedding],
            nothing if routing.embedding == last else shares[last],
        ]
        self._sums.add(site, torch.cat([torch.stack(statistics), weights.sum(0)]))


def _site_routing(sums: Tensor) -> SiteRouting:
    tokens, largest, entropy, effective, embedding, newest = sums[:6].tolist()
    return SiteRouting(
        tokens=tokens,
        max_sum=largest,
        entropy_sum=entropy,
        effective_sum=effective,
        embedding_sum=embedding,
        newest_sum=newest,
        weight_sums=sums[6:],
    )


def depth_third(site: int, num_sites: int) -> str:
    """Which of `DEPTHS` a site belongs to; a final read belongs to the deepest."""
    return DEPTHS[min(3 * site // num_sites, 2)]


def mean_sharpness(sites: dict[int, SiteRouting], num_sites: int, third: str | None = None) -> float | None:
    """Sharpness averaged over the sites, of one of `DEPTHS` or all; None if none of them is routed."""
    values = [routing.sharpness for site, routing in sites.items() if third in (None, depth_third(site, num_sites))]
    return sum(values) / len(values) if values else None


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
