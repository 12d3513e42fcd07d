"""What is wrapped around the model changes what is held and where, never what is computed or how it is called."""

import copy
import gc
from functools import cache, partial

import pytest
import torch
from tiny import gradients, scramble, tiny_config, tiny_model, tokens, variant
from torch.nn import functional as F

from benchmarks.held import held_bytes
from benchmarks.step import Entry, Setting, batch
from lightning_dar.errors import UsageError
from lightning_dar.model import build_transformer
from lightning_dar.residual import ResidualConfig, available_residuals
from lightning_dar.training import LanguageModel
from lightning_dar.training.parallelize import checkpoint_activations, checkpointed_layers, parallelize

BACKENDS = ("naive", "fused", "two_phase")
VARIANTS = [
    *map(variant, available_residuals()),
    variant("attnres", granularity="sublayer"),
    variant("delta-block", block_delta="released", num_blocks=2),
    variant("delta-sublayer", gate="alpha", null_source=True),
]
KEYS = [
    "embed.weight",
    "sublayers.0.norm.weight",
    "sublayers.0.q_proj.weight",
    "sublayers.0.k_proj.weight",
    "sublayers.0.v_proj.weight",
    "sublayers.0.o_proj.weight",
    "sublayers.0.q_norm.weight",
    "sublayers.0.k_norm.weight",
    "sublayers.1.norm.weight",
    "sublayers.1.gate_proj.weight",
    "sublayers.1.up_proj.weight",
    "sublayers.1.down_proj.weight",
    "residual.query",
    "residual.gain",
    "norm.weight",
]


def loss_of(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


@pytest.mark.parametrize("name, options", VARIANTS)
def test_recomputing_changes_no_bit(name, options):
    """Not of the loss, nor of any gradient: the same operations run again on the same numbers."""
    ids = tokens()
    for backend in BACKENDS:
        torch.manual_seed(1)
        config = ResidualConfig(name=name, options=options, depth_read=backend)
        model = scramble(build_transformer(tiny_config(), config))
        loss = loss_of(model, ids)
        wanted = gradients(model, loss)
        for mode in ("sublayer", "full", 0.5):
            wrapped = copy.deepcopy(model)
            parallelize(wrapped, mode)
            again = loss_of(wrapped, ids)
            assert again.equal(loss)
            for key, grad in gradients(wrapped, again).items():
                assert grad.equal(wanted[key]), (backend, mode, key)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("mode", ["none", "sublayer", "full", 0.5])
def test_wrapping_changes_no_key(mode, sharded, mesh):
    model = tiny_model("delta-sublayer", tiny_config(num_layers=1))
    parallelize(model, mode, compile_backend="eager", mesh=mesh if sharded else None)
    assert sorted(model.state_dict()) == sorted(KEYS)
    assert sorted(name for name, _ in model.named_parameters()) == sorted(KEYS)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("mode", ["none", "sublayer", "full"])
def test_compiled_sublayers(mode, sharded, mesh):
    """The same to rounding; few graphs, which all sublayers of a kind share."""
    torch._dynamo.reset()
    model, ids, graphs = scramble(tiny_model("delta-block")), tokens(), []
    loss = loss_of(model, ids)
    wanted = gradients(model, loss)

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    parallelize(model, mode, compile_backend=backend, mesh=mesh if sharded else None)
    for _ in range(2):
        model.zero_grad()
        again = loss_of(model, ids)
        again.backward()
        torch.testing.assert_close(again, loss)
        for name, parameter in model.named_parameters():
            grad = parameter.grad.full_tensor() if sharded else parameter.grad
            torch.testing.assert_close(grad, wanted[name], rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 3


def forwards_by_sublayer(model):
    """How often each sublayer computes in one forward and backward."""
    counts = dict.fromkeys(range(len(model.sublayers)), 0)

    def count(site, *_):
        counts[site] += 1

    for site, sublayer in enumerate(model.sublayers):
        inner = sublayer.up_proj if site % 2 else sublayer.v_proj
        inner.register_forward_hook(partial(count, site))
    loss_of(model, tokens()).backward()
    return list(counts.values())


@pytest.mark.parametrize(
    "mode, expected",
    [
        ("none", [1, 1, 1, 1, 1, 1, 1, 1]),
        ("sublayer", [2, 2, 2, 2, 2, 2, 2, 2]),
        ("full", [2, 2, 2, 2, 2, 2, 2, 2]),
        (0.5, [1, 1, 2, 2, 1, 1, 2, 2]),
        (0.25, [1, 1, 1, 1, 1, 1, 2, 2]),
        (0.0, [1, 1, 1, 1, 1, 1, 1, 1]),
        (1.0, [2, 2, 2, 2, 2, 2, 2, 2]),
    ],
)
def test_which_sublayers_run_again(mode, expected):
    model = tiny_model("delta-sublayer")
    parallelize(model, mode)
    assert forwards_by_sublayer(model) == expected


def test_a_copy_of_a_wrapped_model_has_weights_of_its_own():
    model = tiny_model("delta-block")
    for mode in ("sublayer", "full"):
        checkpoint_activations(model, mode)
        other = copy.deepcopy(model)
        ids = tokens()
        before = model(ids)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        assert model(ids).equal(before) and other(ids).eq(0).all()


@pytest.mark.parametrize("mode", [-0.1, 1.5, "half"])
def test_an_unknown_mode_is_refused_before_any_data_is_read(mode):
    with pytest.raises(UsageError, match=f"model.activation_checkpointing={mode}: must be none, sublayer, full, or a"):
        LanguageModel(hidden_size=16, num_layers=2, num_heads=2, activation_checkpointing=mode)


def test_fractions_are_spread_evenly():
    assert checkpointed_layers(1 / 3, 9) == {2, 5, 8}
    assert len(checkpointed_layers(0.7, 36)) == 25


SIZE = Setting(layers=9, hidden_size=64, seq_len=48, batch_size=1, vocab_size=64)


@pytest.fixture(scope="module")
def held():
    """(mode, strategy, backend, options) -> bytes held for backward. What lived before is out of the counter's way."""
    gc.collect()
    gc.freeze()

    @cache
    def measure(mode, strategy="standard", backend="none", **options):
        loss, data = Entry(strategy, backend, options).build(SIZE), batch(SIZE)
        checkpoint_activations(loss.model, mode)
        return held_bytes(lambda: loss(*data), [*loss.model.parameters(), *data])

    yield measure
    gc.unfreeze()


def test_what_a_standard_model_holds(held):
    """Whole layers: the stream, [M, D] in fp32, once a layer; sublayers alone: once a site. A region's random state,
    for what draws in it, comes on top."""
    region = 4 * SIZE.seq_len * SIZE.hidden_size + torch.get_rng_state().nbytes
    none, sublayer, full = (held(mode) for mode in ("none", "sublayer", "full"))
    assert sublayer - full == SIZE.layers * region
    assert none > 5 * sublayer


@pytest.mark.parametrize("backend", ["fused", "two_phase"])
@pytest.mark.parametrize("name, options", [case for case in VARIANTS if case.values[0] != "standard"])
def test_a_routed_model_holds_one_source_a_site_more(name, options, backend, held):
    """A read: a source [M, D] at most, its inverse RMS and logit [M], and its query times its gain [D]."""
    reads = 2 * SIZE.layers + (name == "attnres")
    most = 4 * reads * (SIZE.seq_len * SIZE.hidden_size + 2 * SIZE.seq_len + SIZE.hidden_size)
    assert 0 < held("full", name, backend, **options) - held("full") <= most
