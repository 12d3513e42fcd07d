"""A network whose depth reads are changed: knock-outs, other weights in place of the learned ones.

    model(input_ids, residual=Wrapper(model.residual, num_sites=len(model.sublayers)))

No flag on the strategy, nothing held between measurements; training forwards never pass through one.

    changes = [unchanged, knock_out(3, renormalised=True)]
    model(input_ids, residual=ChangedReads(model.residual, num_sites, changes, site=7))   # hidden states [2 * B, T, D]

A change maps the weights of a read to those to read with. Whatever it is compared with goes through the same
arithmetic, as `unchanged`: a change that changes nothing makes a difference of rounding only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_dar.residual.base import DepthRouting, Residual


class Watched:
    """Runs `residual` unchanged and shows every read that routes to `seen`. The final read of a strategy that has
    one counts as site `num_sites`."""

    def __init__(self, residual: Residual, num_sites: int):
        self.residual, self.num_sites = residual, num_sites

    def seen(self, site: int, routing: DepthRouting, tokens: Tensor | None = None) -> None:
        """Called before the read at `site`, without gradient. `tokens`: as `Together` takes them."""

    def start(self, embeddings: Tensor) -> Any:
        return self.residual.start(embeddings)

    def read(self, state: Any, site: int) -> Any:
        self._show(state, site)
        return self.residual.read(state, site)

    def write(self, state: Any, y: Tensor, site: int) -> Any:
        return self.residual.write(state, y, site)

    def finish(self, state: Any) -> Tensor:
        self._show(state, self.num_sites)
        return self.residual.finish(state)

    @torch.no_grad()
    def _show(self, state: Any, site: int) -> None:
        routing = self.residual.routing(state, site)
        if routing is not None:
            self.seen(site, routing)


class Together(Watched):
    """Several probes of one forward: each read is laid open once, and shown to all.

    Args:
        probes: of the same network.
        tokens: int64 [N], which of the B * T tokens are counted, such as those that are no padding; default: all.
    """

    def __init__(self, probes: Sequence[Watched], tokens: Tensor | None = None):
        super().__init__(probes[0].residual, probes[0].num_sites)
        self.probes, self.tokens = probes, tokens

    def seen(self, site: int, routing: DepthRouting, tokens: Tensor | None = None) -> None:
        for probe in self.probes:
            probe.seen(site, routing, self.tokens)


def lays_open(residual: Residual) -> bool:
    """Whether the strategy shows its routing: `standard` and some plugins have none."""
    return type(residual).routing is not Residual.routing


Change = Callable[[Tensor, int], Tensor]
"""(weights [B, T, n], site) -> the weights to read with, [B, T, n]; they need not add up to 1."""


def unchanged(weights: Tensor, site: int) -> Tensor:
    """What other changes are compared with."""
    return weights


def uniform(weights: Tensor, site: int) -> Tensor:
    """1/n for each source."""
    return torch.full_like(weights, 1 / weights.shape[-1])


def hardest(weights: Tensor, site: int) -> Tensor:
    """1 for the source with the largest weight (the oldest of equals), 0 for the others."""
    return torch.zeros_like(weights).scatter_(-1, weights.argmax(-1, keepdim=True), 1)


def fixed(mean_weights: Mapping[int, Tensor]) -> Change:
    """The same weights for every token: `mean_weights[site]` [n]; a site that is not in it keeps its own."""

    def change(weights: Tensor, site: int) -> Tensor:
        return mean_weights[site].to(weights).expand_as(weights) if site in mean_weights else weights

    return change


def scaled(strength: float) -> Change:
    """`strength` times the weights: scales the routed branch of an additive read."""
    return lambda weights, site: weights * strength


def knock_out(source: int, *, renormalised: bool) -> Change:
    """Weight 0 for `source`, where a site has it.

    Args:
        source: its number at the site, 0 is the oldest.
        renormalised: the other weights are scaled to add up to 1 again, and are all equal where nothing is left of
            them. A site with no other source is then left as it is.
    """

    def change(weights: Tensor, site: int) -> Tensor:
        n = weights.shape[-1]
        if source >= n or (renormalised and n == 1):
            return weights
        kept = torch.arange(n, device=weights.device) != source
        left = weights * kept
        if not renormalised:
            return left
        total = left.sum(-1, keepdim=True)
        return torch.where(total > 0, left / total, kept / (n - 1))

    return change


class _Copies(NamedTuple):
    """The state of a forward over copies of a batch."""

    inner: Any  # the strategy's own state, of all copies
    rows: int  # B, of one copy
    alike: bool  # nothing has been changed yet


class ChangedReads:
    """Runs `residual` on a copy of the batch for each of `changes`, copy after copy: K changes make of embeddings
    [B, T, D] hidden states [K * B, T, D].

    Up to the first changed read the copies are alike, and sublayers see one of them. Sites that route nothing stay as
    they are; the final read of a strategy that has one counts as site `num_sites`.

    Args:
        residual: the strategy. Query, key and value inputs pass through; a site that reads them apart must not route,
            as one changed read cannot stand for three.
        num_sites: sublayers of the network.
        changes: what is done to each copy.
        site: the one site where it is done; default: all.
    """

    def __init__(self, residual: Residual, num_sites: int, changes: Sequence[Change], site: int | None = None):
        self.residual, self.num_sites, self.changes, self.site = residual, num_sites, changes, site

    def start(self, embeddings: Tensor) -> _Copies:
        return _Copies(self.residual.start(self._repeat(embeddings)), len(embeddings), alike=True)

    def read(self, state: _Copies, site: int) -> Any:
        x = self._changed(state, site)
        if x is not None:
            return x
        x = self.residual.read(state.inner, site)
        if not state.alike:
            return x
        return tuple(part[: state.rows] for part in x) if isinstance(x, tuple) else x[: state.rows]

    def write(self, state: _Copies, y: Tensor, site: int) -> _Copies:
        alike = len(y) == state.rows
        return state._replace(
            inner=self.residual.write(state.inner, self._repeat(y) if alike else y, site), alike=state.alike and alike
        )

    def finish(self, state: _Copies) -> Tensor:
        hidden = self._changed(state, self.num_sites)
        return self.residual.finish(state.inner) if hidden is None else hidden

    def _changed(self, state: _Copies, site: int) -> Tensor | None:
        """The changed read, None where this one stays as it is."""
        if self.site not in (None, site):
            return None
        routing: DepthRouting | None = self.residual.routing(state.inner, site)
        if routing is None:
            return None
        copies = routing.weights.split(state.rows)
        return routing.output(torch.cat([change(w, site) for change, w in zip(self.changes, copies, strict=True)]))

    def _repeat(self, rows: Tensor) -> Tensor:
        return rows.repeat(len(self.changes), *(1 for _ in rows.shape[1:]))
