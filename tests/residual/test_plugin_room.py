"""Wirings beyond the shipped ones fit the four verbs: each throw-away plugin here stands for a family of the field."""

import pytest
import torch
from tiny import gradients, scramble, tiny_config, tiny_model, tokens
from torch import nn
from torch.nn import functional as F

from lightning_dar.diagnostics.probe import RoutingProbe
from lightning_dar.residual import Residual, register_residual
from lightning_dar.residual.base import DepthRouting


class TwoStreams(Residual):
    """Hyper-connections, static: two parallel streams [2, B, T, D], mixed by learned weights a site."""

    def __init__(self, shape):
        super().__init__(shape)
        self.read_mix = nn.Parameter(torch.empty(shape.num_sites, 2))
        self.write_mix = nn.Parameter(torch.empty(shape.num_sites, 2))
        self.carry = nn.Parameter(torch.empty(shape.num_sites, 2, 2))
        self.out_mix = nn.Parameter(torch.empty(2))

    def reset_parameters(self):
        """Reads and writes the first stream, which so is the standard one; the second keeps the embeddings."""
        with torch.no_grad():
            for mix in (self.read_mix, self.write_mix, self.out_mix):
                mix.copy_(torch.tensor([1.0, 0.0]).expand_as(mix))
            self.carry.copy_(torch.eye(2).expand_as(self.carry))

    def start(self, embeddings):
        return torch.stack([embeddings, embeddings])

    def read(self, state, site):
        return torch.einsum("n,nbtd->btd", self.read_mix[site], state)

    def write(self, state, y, site):
        carried = torch.einsum("mn,nbtd->mbtd", self.carry[site], state)
        return carried + torch.einsum("n,btd->nbtd", self.write_mix[site], y)

    def finish(self, state):
        return torch.einsum("n,nbtd->btd", self.out_mix, state)


class ValueStream(Residual):
    """Query and key inputs are the stream; the value input has a share of the embeddings added."""

    attention_inputs = 3

    def __init__(self, shape):
        super().__init__(shape)
        self.share = nn.Parameter(torch.empty(shape.num_layers))

    def reset_parameters(self):
        nn.init.zeros_(self.share)

    def start(self, embeddings):
        return embeddings, embeddings

    def read(self, state, site):
        stream, embeddings = state
        if site % 2:
            return stream
        return stream, stream, stream + self.share[site // 2] * embeddings

    def write(self, state, y, site):
        stream, embeddings = state
        return stream + y, embeddings

    def finish(self, state):
        return state[0]


class PostNorm(Residual):
    """h = RMSNorm(h + y): sublayers without their pre-norm, norms of the strategy's own."""

    pre_norm = False

    def __init__(self, shape):
        super().__init__(shape)
        self.norms = nn.ModuleList(nn.RMSNorm(shape.hidden_size, shape.eps) for _ in range(shape.num_sites))

    def reset_parameters(self):
        for norm in self.norms:
            nn.init.ones_(norm.weight)

    def start(self, embeddings):
        return embeddings

    def read(self, state, site):
        return state

    def write(self, state, y, site):
        return self.norms[site](state + y)

    def finish(self, state):
        return state


class TokenDependent(Residual):
    """A growing list of sources whose weights are a linear map of each token's newest state."""

    def __init__(self, shape, *, scale: float = 1.0):
        super().__init__(shape)
        self.scale, self.num_sites = scale, shape.num_sites
        self.weigh = nn.Linear(shape.hidden_size, shape.num_sites + 1)

    def reset_parameters(self):
        nn.init.normal_(self.weigh.weight, std=3.0)
        nn.init.constant_(self.weigh.bias, 0.25)

    def start(self, embeddings):
        return (embeddings,)

    def read(self, state, site):
        return torch.einsum("btn,nbtd->btd", self.weights(state), torch.stack(state))

    def write(self, state, y, site):
        return (*state, y)

    def finish(self, state):
        return self.read(state, self.num_sites)

    def routing(self, state, site):
        return DepthRouting(self.weights(state), state)

    def weights(self, state):
        return (self.scale * self.weigh(state[-1])[..., : len(state)]).softmax(-1)


PLUGINS = {
    "two-streams": TwoStreams,
    "value-stream": ValueStream,
    "post-norm": PostNorm,
    "token-dependent": TokenDependent,
}


@pytest.fixture(autouse=True)
def registered(own_registry):
    for name, cls in PLUGINS.items():
        register_residual(name)(cls)


def with_weights_of(model, other):
    """`model` with `other`'s weights wherever both have a parameter of that name."""
    assert not model.load_state_dict(other.state_dict(), strict=False).unexpected_keys
    return model


@pytest.mark.parametrize("name", PLUGINS)
def test_every_parameter_gets_a_gradient(name):
    model = scramble(tiny_model(name))
    batch = tokens()
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    grads = gradients(model, loss)
    assert {key for key, grad in grads.items() if not grad.abs().sum() > 0} == set()


def test_two_streams_differ():
    standard = scramble(tiny_model("standard"))
    model, input_ids = with_weights_of(tiny_model("two-streams"), standard), tokens()
    assert torch.equal(model(input_ids), standard(input_ids))
    with torch.no_grad():
        model.residual.out_mix.copy_(torch.tensor([0.0, 1.0]))
    embeddings_only = F.linear(model.norm(model.embed(input_ids)), model.embed.weight)
    torch.testing.assert_close(model(input_ids), embeddings_only)


def test_two_streams_mix_what_they_say():
    """Streams carried crosswise at the first site: the second then is e + the first sublayer's output."""
    model, input_ids = scramble(tiny_model("two-streams")), tokens()
    model.residual.reset_parameters()
    seen = []
    model.sublayers[1].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        model.residual.carry[0] = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        model.residual.write_mix[0] = torch.tensor([0.0, 2.0])
        model.residual.read_mix[1] = torch.tensor([0.0, 1.0])
    delta = []
    model.sublayers[0].register_forward_hook(lambda module, args, y: delta.append(y))
    model(input_ids)
    torch.testing.assert_close(seen[0], model.embed(input_ids) + 2 * delta[0])


def test_query_key_and_value_inputs_have_norms_of_their_own():
    model, batch = scramble(tiny_model("value-stream")), tokens()
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    grads = gradients(model, loss)
    for site in range(0, len(model.sublayers), 2):
        query, key, value = (grads[f"sublayers.{site}.{norm}.weight"] for norm in ("norm", "key_norm", "value_norm"))
        for one, other in ((query, key), (key, value), (query, value)):
            assert F.cosine_similarity(one, other, dim=0).abs() < 0.9


def test_only_the_value_input_matters_to_a_lone_token():
    """The softmax over a single key is 1 whatever the query and the key."""
    model = scramble(tiny_model("value-stream"))
    grads = gradients(model, model(tokens(batch=3, length=1)).square().sum())
    for norm, matters in {"norm": False, "key_norm": False, "value_norm": True}.items():
        assert (grads[f"sublayers.0.{norm}.weight"].abs().max() > 1e-3) == matters


def test_three_equal_inputs_are_the_standard_network():
    standard = scramble(tiny_model("standard"))
    model, input_ids = with_weights_of(tiny_model("value-stream"), standard), tokens()
    for attention in model.sublayers[::2]:
        attention.key_norm.load_state_dict(attention.norm.state_dict())
        attention.value_norm.load_state_dict(attention.norm.state_dict())
    assert torch.equal(model(input_ids), standard(input_ids))
    with torch.no_grad():
        model.residual.share += 1.0
    assert not torch.allclose(model(input_ids), standard(input_ids), atol=1e-2)


def test_without_pre_norm_sublayers_have_no_input_norm():
    shipped, model = tiny_model("standard"), tiny_model("post-norm")
    sublayer_keys = {key for key in model.state_dict() if not key.startswith("residual.")}
    assert shipped.state_dict().keys() - sublayer_keys == {f"sublayers.{s}.norm.weight" for s in range(8)}
    assert sublayer_keys <= shipped.state_dict().keys()


def test_without_pre_norm_the_raw_stream_reaches_the_sublayer():
    model, x = scramble(tiny_model("post-norm")), torch.randn(2, 3, 16)
    mlp = model.sublayers[1]
    expected = (F.silu(x @ mlp.gate_proj.weight.T) * (x @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
    torch.testing.assert_close(mlp(x, None), expected)


def test_own_modules_keep_their_own_init():
    config = tiny_config(init_std=0.02)
    direct = tiny_model("token-dependent", config)
    with torch.device("meta"):
        late = tiny_model("token-dependent", config)
    late.to_empty(device="cpu").init_weights()
    for model in (direct, late):
        weigh = model.residual.weigh
        assert weigh.bias.eq(0.25).all()
        assert weigh.weight.std().item() == pytest.approx(3.0, rel=0.2)


def test_weights_depend_on_the_token():
    model = tiny_model("token-dependent")
    state = (torch.randn(1, 6, 16), torch.randn(1, 6, 16))
    weights = model.residual.routing(state, site=1).weights[0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(6))
    assert weights[:, 0].std() > 0.1
    assert tiny_model("token-dependent", scale=0.0).residual.routing(state, 1).weights.eq(0.5).all()


def test_probe_measures_a_plugin_that_reports_weights_and_no_other():
    def routed_sites(name):
        model = scramble(tiny_model(name))
        probe = RoutingProbe(model.residual, num_sites=8)
        model(tokens(), residual=probe)
        return {site: routing.num_sources for site, routing in probe.sites.items()}

    assert routed_sites("token-dependent") == {site: site + 1 for site in range(1, 9)}
    assert routed_sites("two-streams") == {}
