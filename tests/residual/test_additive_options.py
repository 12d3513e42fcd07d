"""`gate` and `null_source` of the additive strategies at the first step."""

import pytest
import torch
from tiny import VOCAB, gradients, tiny_model, tokens, variant
from torch.nn import functional as F

ADDITIVE = [
    variant("delta-sublayer"),
    variant("delta-block", num_blocks=2),
    variant("delta-block", num_blocks=2, block_delta="released"),
    variant("cumulative-additive"),
]
additive = pytest.mark.parametrize("name, options", ADDITIVE)


def same_seed(name, **options):
    torch.manual_seed(1)
    return tiny_model(name, **options)


@additive
@pytest.mark.parametrize("query_init", ["zeros", "normal"])
def test_alpha_gate_starts_as_the_standard_network_bit_for_bit(name, options, query_init):
    input_ids = tokens()
    gated = same_seed(name, gate="alpha", query_init=query_init, **options)
    assert torch.equal(gated(input_ids), same_seed("standard")(input_ids))


@additive
def test_alpha_gate_has_a_gradient_at_every_routed_site_from_the_first_step(name, options):
    model = tiny_model(name, gate="alpha", **options)
    loss = F.cross_entropy(model(tokens()).flatten(0, 1), tokens().flatten())
    gradient = gradients(model, loss)["residual.gate"]
    first_routed = 0 if name == "cumulative-additive" else 1
    assert gradient[first_routed:].ne(0).all()
    assert gradient[:first_routed].eq(0).all()


@additive
def test_gates_at_one_are_the_ungated_network(name, options):
    input_ids = tokens()
    ungated, gated = same_seed(name, **options), same_seed(name, gate="alpha", **options)
    torch.nn.init.ones_(gated.residual.gate)
    assert torch.equal(gated(input_ids), ungated(input_ids))
    assert not torch.equal(gated(input_ids), same_seed("standard")(input_ids))


def test_fresh_null_source_adds_the_mean_over_it_and_the_sources():
    model = tiny_model("delta-sublayer", null_source=True)
    embeddings, y_0, y_1 = torch.randn(3, 2, 5, 16)
    state = model.residual.start(embeddings)
    torch.testing.assert_close(model.residual.read(state, 0), embeddings)  # the mean of the null source alone
    state = model.residual.write(state, y_0, 0)
    state = model.residual.write(state, y_1, 1)
    stream, mean = embeddings + y_0 + y_1, (0 + embeddings + y_0 + y_1) / 4
    torch.testing.assert_close(model.residual.read(state, 2), stream + mean)


def test_null_source_is_used_at_site_0():
    model = tiny_model("delta-sublayer", null_source=True)
    gradient = gradients(model, model(tokens())[..., : VOCAB // 2].sum())["residual.null_source"]
    assert gradient.abs().amax(-1).gt(0).all()


@pytest.mark.parametrize("name", ["delta-sublayer", "delta-block", "attnres", "cumulative-replacement"])
def test_query_init(name):
    zeros, normal = tiny_model(name).residual.query, tiny_model(name, query_init="normal").residual.query
    assert zeros.eq(0).all()
    assert normal.std().item() == pytest.approx(0.02, rel=0.3)
