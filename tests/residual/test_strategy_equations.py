"""Every strategy against its row of the table, written out plainly: all states kept, deltas by subtraction, float64."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tiny import gradients, scramble, tiny_config, tiny_model, tokens

from lightning_dar.diagnostics.interventions import Watched
from lightning_dar.diagnostics.probe import RoutingProbe
from lightning_dar.model.attention import Context
from lightning_dar.model.rope import rope_angles


@dataclass
class Wiring:
    """`sources(s, h, y)`: what site s reads, given h_0 .. h_s and y_0 .. y_{s-1}."""

    name: str
    sources: Callable
    options: dict[str, Any] = field(default_factory=dict)
    num_layers: int = 4
    replaces: bool = False
    reads_at_the_end: bool = False

    def __str__(self):
        return " ".join([self.name, f"L={self.num_layers}", *(f"{k}={v}" for k, v in self.options.items())])


def deltas(s, h, y):
    return [h[0], *y[:s]] if s else []


def cumulative(s, h, y):
    return h[: s + 1]


def block_deltas(num_layers, num_blocks):
    sites = 2 * math.ceil(num_layers / num_blocks)

    def sources(s, h, y):
        finished = range(sites, s + 1, sites)
        return [h[0], *(h[end] - h[end - sites] for end in finished)] if s else []

    return sources


def attnres_sublayers(s, h, y):
    return [h[0], *y[:s]]


def attnres_blocks(num_layers, num_blocks):
    sites = 2 * math.ceil(num_layers / num_blocks)

    def sources(s, h, y):
        """The first site of a block still reads the block before as its running partial."""
        blocks = [sum(y[first : min(first + sites, s)]) for first in range(0, s, sites)]
        return [h[0], *blocks]

    return sources


def delta_block(num_layers, num_blocks, **options):
    options = {"num_blocks": num_blocks, **options}
    return Wiring("delta-block", block_deltas(num_layers, num_blocks), options, num_layers)


def attnres(num_layers, num_blocks):
    sources = attnres_blocks(num_layers, num_blocks)
    return Wiring("attnres", sources, {"num_blocks": num_blocks}, num_layers, replaces=True, reads_at_the_end=True)


WIRINGS = [
    Wiring("standard", lambda s, h, y: []),
    Wiring("delta-sublayer", deltas),
    Wiring("delta-sublayer", deltas, {"gate": "alpha"}),
    Wiring("delta-sublayer", deltas, {"null_source": True}),
    delta_block(4, 1),
    delta_block(4, 2),
    delta_block(4, 4),
    delta_block(5, 2),
    delta_block(5, 3),
    delta_block(5, 4),
    delta_block(5, 3, gate="alpha"),
    delta_block(5, 3, null_source=True),
    delta_block(4, 2, gate="alpha", null_source=True),
    attnres(4, 1),
    attnres(4, 2),
    attnres(5, 2),
    attnres(5, 4),
    Wiring("attnres", attnres_sublayers, {"granularity": "sublayer"}, replaces=True, reads_at_the_end=True),
    Wiring("cumulative-additive", cumulative),
    Wiring("cumulative-additive", cumulative, {"gate": "alpha", "null_source": True}),
    Wiring("cumulative-replacement", cumulative, replaces=True),
]
every_wiring = pytest.mark.parametrize("wiring", WIRINGS, ids=str)


def build(wiring):
    config = tiny_config(num_layers=wiring.num_layers)
    return scramble(tiny_model(wiring.name, config, **wiring.options).double())


def by_equation(model, wiring, input_ids):
    """Logits, and by site the routing weights [B, T, n]."""
    residual, eps = model.residual, model.config.norm_eps
    cos, sin = rope_angles(torch.arange(input_ids.shape[1]), model.config.head_dim, model.config.rope_theta)
    embeddings = model.embed(input_ids)
    h, y, weights = [embeddings], [], {}

    def depth_read(s):
        sources = list(wiring.sources(s, h, y))
        if wiring.options.get("null_source"):
            sources = [residual.null_source[s].expand_as(embeddings), *sources]
        if not sources:
            return torch.zeros_like(embeddings)
        keys = [residual.gain[s] * v / (v.square().mean(-1, keepdim=True) + eps).sqrt() for v in sources]
        scores = torch.stack([(residual.query[s] * k).sum(-1) for k in keys]).exp()
        weights[s] = (scores / scores.sum(0)).movedim(0, -1)
        return sum(weights[s][..., i, None] * v for i, v in enumerate(sources))

    for s, sublayer in enumerate(model.sublayers):
        scale = residual.gate[s] if wiring.options.get("gate") == "alpha" else 1.0
        x = depth_read(s) if wiring.replaces else h[s] + scale * depth_read(s)
        y.append(sublayer(x, Context(cos, sin, None)))
        h.append(h[s] + y[s])
    last = len(model.sublayers)
    hidden = depth_read(last) if wiring.reads_at_the_end else h[last]
    return model.norm(hidden) @ model.embed.weight.T, weights


@every_wiring
def test_logits_and_gradients(wiring):
    model, input_ids = build(wiring), tokens()
    logits, (expected, _) = model(input_ids), by_equation(model, wiring, input_ids)
    torch.testing.assert_close(logits, expected, rtol=1e-9, atol=1e-9)

    direction = torch.randn_like(logits)
    ours, theirs = gradients(model, (logits * direction).sum()), gradients(model, (expected * direction).sum())
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@every_wiring
def test_probe_reports_the_routing_weights(wiring):
    model, input_ids = build(wiring), tokens()
    probe = RoutingProbe(model.residual, num_sites=len(model.sublayers))
    logits = model(input_ids, residual=probe)
    assert torch.equal(logits, model(input_ids))

    _, weights = by_equation(model, wiring, input_ids)
    routed = {s: a.flatten(0, 1) for s, a in weights.items() if a.shape[-1] > 1}
    assert probe.sites.keys() == routed.keys()
    for s, a in routed.items():
        site, entropy = probe.sites[s], -(a * a.log()).sum(-1) / math.log(a.shape[-1])
        torch.testing.assert_close(site.mean_weights, a.mean(0))
        assert site.sharpness == pytest.approx(a.max(-1).values.mean().item())
        assert site.entropy == pytest.approx(entropy.mean().item())


@every_wiring
def test_a_read_laid_open_is_the_read(wiring):
    class Compare(Watched):
        sites = 0

        def read(self, state, site):
            x = super().read(state, site)
            routing = self.residual.routing(state, site)
            if routing is not None:
                self.sites += 1
                torch.testing.assert_close(routing.output(), x)
                assert routing.embedding is None or torch.equal(routing.sources[routing.embedding], embeddings)
            return x

    model, input_ids = build(wiring), tokens()
    embeddings = model.embed(input_ids)
    compared = Compare(model.residual, len(model.sublayers))
    model(input_ids, residual=compared)
    assert compared.sites >= len(model.sublayers) - 1 or wiring.name == "standard"


def test_released_block_delta_differs_from_the_definition():
    config, input_ids = tiny_config(num_layers=6), tokens()
    definition = scramble(tiny_model("delta-block", config, num_blocks=3))
    released = tiny_model("delta-block", config, num_blocks=3, block_delta="released")
    released.load_state_dict(definition.state_dict())
    assert (definition(input_ids) - released(input_ids)).abs().max() > 1e-2
