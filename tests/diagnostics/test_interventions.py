"""Changed reads against the definition, and against each other."""

import pytest
import torch
from tiny import scramble, tiny_model, tokens, variant

from lightning_dar.diagnostics.interventions import (
    ChangedReads,
    fixed,
    hardest,
    knock_out,
    scaled,
    unchanged,
    uniform,
)
from lightning_dar.residual import Residual, register_residual

SITES = 8
VARIANTS = [
    variant("delta-sublayer"),
    variant("delta-sublayer", gate="alpha", null_source=True),
    variant("delta-block", num_blocks=2),
    variant("delta-block", block_delta="released", num_blocks=2),
    variant("attnres", num_blocks=2),
    variant("attnres", granularity="sublayer"),
    variant("cumulative-additive"),
    variant("cumulative-replacement"),
]


@torch.no_grad()
def logits(model, ids, changes, site=None):
    """Of each copy."""
    return model(ids, residual=ChangedReads(model.residual, SITES, changes, site)).chunk(len(changes))


WEIGHTS = torch.tensor([[[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]]])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (unchanged, [[0.5, 0.3, 0.2], [0, 1, 0]]),
        (uniform, [[1 / 3] * 3, [1 / 3] * 3]),
        (hardest, [[1, 0, 0], [0, 1, 0]]),
        (fixed({4: torch.tensor([0.1, 0.2, 0.7])}), [[0.1, 0.2, 0.7]] * 2),
        (fixed({3: torch.tensor([0.1, 0.2, 0.7])}), [[0.5, 0.3, 0.2], [0, 1, 0]]),
        (scaled(0.5), [[0.25, 0.15, 0.1], [0, 0.5, 0]]),
        (knock_out(1, renormalised=False), [[0.5, 0, 0.2], [0, 0, 0]]),
        (knock_out(1, renormalised=True), [[5 / 7, 0, 2 / 7], [0.5, 0, 0.5]]),
        (knock_out(3, renormalised=True), [[0.5, 0.3, 0.2], [0, 1, 0]]),
    ],
)
def test_weights_of_a_change(change, expected):
    torch.testing.assert_close(change(WEIGHTS, 4), torch.tensor([expected], dtype=torch.float32))


def test_a_lone_source_is_removed_but_not_renormalised():
    lone = torch.ones(1, 2, 1)
    assert knock_out(0, renormalised=False)(lone, 0).eq(0).all()
    assert knock_out(0, renormalised=True)(lone, 0).eq(1).all()


@pytest.mark.parametrize("renormalised", [True, False])
@pytest.mark.parametrize("source", [0, 2, 5])
def test_a_knocked_out_read_agrees_with_the_definition(source, renormalised):
    model, ids, site = scramble(tiny_model("delta-sublayer")), tokens(), 5
    outputs, seen = [], []
    model.embed.register_forward_hook(lambda module, args, out: outputs.append(out.double()))
    for sublayer in model.sublayers:
        sublayer.register_forward_hook(lambda module, args, out: outputs.append(out.double()))
    model.sublayers[site].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    logits(model, ids, [unchanged, knock_out(source, renormalised=renormalised)], site)

    values = torch.stack(outputs[: site + 1])  # the embedding and the outputs of sites 0 .. 4
    keys = values * (values.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * model.residual.gain[site].double()
    terms = (keys @ model.residual.query[site].double()).exp()
    others = [number for number in range(site + 1) if number != source]
    total = terms[others].sum(0) if renormalised else terms.sum(0)
    without = sum(terms[number, ..., None] * values[number] for number in others) / total[..., None]
    torch.testing.assert_close(seen[0][2:].double(), values.sum(0) + without, rtol=1e-5, atol=1e-5)
    learned = (terms[..., None] * values).sum(0) / terms.sum(0)[..., None]
    torch.testing.assert_close(seen[0][:2].double(), values.sum(0) + learned, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_copies_in_one_forward_agree_with_forwards_of_their_own(name, options):
    model, ids = scramble(tiny_model(name, **options)), tokens()
    changes = [unchanged, uniform, hardest, knock_out(0, renormalised=True), knock_out(1, renormalised=False)]
    for site in (None, 0, 3, SITES):
        together = logits(model, ids, changes, site)
        for change, copy in zip(changes, together, strict=True):
            torch.testing.assert_close(copy, logits(model, ids, [change], site)[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(together[0], model(ids), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(model, ids, [hardest])[0], model(ids), atol=1e-2)


def test_sublayers_before_the_changed_site_see_one_copy():
    model, ids, rows = tiny_model("delta-sublayer"), tokens(batch=2), []
    for sublayer in model.sublayers:
        sublayer.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    logits(model, ids, [unchanged, uniform, hardest], site=3)
    assert rows == [2, 2, 2, 6, 6, 6, 6, 6]


def test_only_the_named_site_is_changed():
    model, ids = scramble(tiny_model("cumulative-replacement")), tokens()
    seen = [[] for _ in range(SITES)]
    for site, sublayer in enumerate(model.sublayers):
        sublayer.register_forward_pre_hook(lambda module, args, site=site: seen[site].append(args[0]))
    logits(model, ids, [uniform], site=4)
    logits(model, ids, [unchanged])
    for first, second in seen[:4]:
        torch.testing.assert_close(first, second)
    assert not torch.allclose(*seen[4], atol=1e-2)


def one_source_model():
    """All weight on the embedding, to the last bit, for the token 0."""
    model = scramble(tiny_model("delta-sublayer"))
    with torch.no_grad():
        model.residual.gain.fill_(1)
        model.residual.query.copy_(1e4 * model.embed(torch.tensor(0)))
    return model


@pytest.mark.parametrize("renormalised", [True, False])
def test_a_source_without_weight_can_go(renormalised):
    model, ids = one_source_model(), torch.zeros(1, 6, dtype=torch.long)
    changes = [unchanged, *(knock_out(source, renormalised=renormalised) for source in range(1, SITES))]
    for site in (None, 2, 7):
        base, *others = logits(model, ids, changes, site)
        assert all(torch.equal(base, other) for other in others)
    base, without_embedding = logits(model, ids, [unchanged, knock_out(0, renormalised=renormalised)], 7)
    assert not torch.allclose(base, without_embedding, atol=1e-2)


def test_uniform_weights_change_nothing_where_queries_are_zero():
    model, ids = scramble(tiny_model("delta-sublayer")), tokens()
    torch.nn.init.zeros_(model.residual.query)
    base, changed = logits(model, ids, [unchanged, uniform])
    torch.testing.assert_close(base, changed, rtol=1e-6, atol=1e-6)


def test_strength_zero_is_the_standard_network():
    model, standard, ids = scramble(tiny_model("delta-block", num_blocks=2)), tiny_model("standard"), tokens()
    standard.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(logits(model, ids, [scaled(0.0)])[0], standard(ids))


def test_separate_inputs_of_query_key_and_value_pass_through(own_registry):
    @register_residual("three")
    class Three(Residual):
        attention_inputs = 3

        def start(self, embeddings):
            return embeddings

        def read(self, state, site):
            return state if site % 2 else (state, state, 2 * state)

        def write(self, state, y, site):
            return state + y

        def finish(self, state):
            return state

    model, ids = scramble(tiny_model("three")), tokens()
    for copy in logits(model, ids, [unchanged, uniform]):
        torch.testing.assert_close(copy, model(ids))
