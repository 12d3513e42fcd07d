"""The stream probe against norms and cosines computed apart, from saved activations, token by token."""

import math

import pytest
import torch
from tiny import scramble, tiny_config, tiny_model, tokens, variant
from torch.utils.checkpoint import checkpoint

from lightning_dar.diagnostics.probe import RoutingProbe, StreamProbe, mean_pairwise_cosine


def saved_activations(model):
    """Lists that fill with the embedding and every sublayer's output in turn, [B * T, D] in float64."""
    saved = []
    for module in (model.embed, *model.sublayers):
        module.register_forward_hook(lambda _m, _a, out: saved.append(out.detach().flatten(0, -2).double()))
    return saved


def norm(vector):
    return math.sqrt(sum(value * value for value in vector))


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (norm(a) * norm(b))


def by_hand(model, saved, site):
    """Means over tokens of `delta-sublayer`: |c r|, |h|, |c r| / |h|, mean pairwise cosine."""
    residual, count = model.residual, site + 1
    query, gain = residual.query[site].detach().double(), residual.gain[site].detach().double()
    gate = 1.0 if residual.gate is None else residual.gate[site].item()
    rows = []
    for token in range(len(saved[0])):
        sources = [saved[number][token] for number in range(count)]
        keys = [source / (source.square().mean() + 1e-6).sqrt() * gain for source in sources]
        logits = [(key @ query).item() for key in keys]
        weights = [math.exp(logit - max(logits)) for logit in logits]
        read = sum(w / sum(weights) * source for w, source in zip(weights, sources, strict=True))
        branch, stream = norm((gate * read).tolist()), norm(sum(sources).tolist())  # h is e and all deltas
        pairs = [(i, j) for i in range(count) for j in range(i)]
        cosines = [cosine(sources[i].tolist(), sources[j].tolist()) for i, j in pairs]
        rows.append((branch, stream, branch / stream, sum(cosines) / len(pairs)))
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("gate", ["none", "alpha"])
def test_agrees_with_saved_activations(gate):
    model = scramble(tiny_model("delta-sublayer", tiny_config(num_layers=2), gate=gate))
    saved, probe = saved_activations(model), StreamProbe(model.residual, 4)
    model(tokens(2, 5), residual=probe)
    assert list(probe.sites) == [1, 2, 3], "site 0 reads no sources"
    for site, measured in probe.sites.items():
        values = (measured.branch_norm, measured.stream_norm, measured.strength, measured.redundancy)
        assert values == pytest.approx(by_hand(model, saved, site), rel=1e-4)
        assert (measured.tokens, measured.num_sources) == (10, site + 1)
        assert measured.gate == (None if gate == "none" else pytest.approx(model.residual.gate[site].item()))


def test_activation_checkpointing_changes_no_number():
    """Each sublayer wrapped by hand: it runs again in backward, the probe must not count that."""
    model, ids = scramble(tiny_model("delta-sublayer")), tokens()

    def measured():
        probes = [kind(model.residual, 8) for kind in (RoutingProbe, StreamProbe)]
        for probe in probes:
            model(ids, residual=probe).sum().backward()
        return [list(probe.sites.values()) for probe in probes]

    (routing, stream) = measured()
    for sublayer in model.sublayers:
        forward = sublayer.forward
        sublayer.forward = lambda x, context, run=forward: checkpoint(run, x, context, use_reentrant=False)
    (routing_again, stream_again) = measured()
    assert stream_again == stream
    for first, second in zip(routing, routing_again, strict=True):
        assert (first.tokens, first.sharpness, first.entropy) == (second.tokens, second.sharpness, second.entropy)


@pytest.mark.parametrize(("name", "options"), [variant("attnres"), variant("cumulative-replacement")])
def test_a_read_that_replaces_the_stream_has_its_own_norm_and_no_ratio(name, options):
    model, ids, inputs = scramble(tiny_model(name, **options)), tokens(), []
    for sublayer in model.sublayers:
        sublayer.register_forward_pre_hook(lambda _m, args: inputs.append(args[0].double()))
    probe = StreamProbe(model.residual, 8)
    model(ids, residual=probe)
    for site, x in enumerate(inputs):
        measured = probe.sites[site]
        assert measured.branch_norm == pytest.approx(x.square().sum(-1).sqrt().mean().item(), rel=1e-5)
        assert (measured.strength, measured.stream_norm, measured.gate) == (None, None, None)


def test_a_gate_of_zero_adds_nothing():
    model = tiny_model("delta-block", gate="alpha")
    probe = StreamProbe(model.residual, 8)
    model(tokens(), residual=probe)
    assert {(site.strength, site.gate) for site in probe.sites.values()} == {(0, 0)}
    assert all(site.stream_norm > 0 for site in probe.sites.values())


def test_bf16_is_measured_in_full_precision():
    model = scramble(tiny_model("delta-sublayer")).bfloat16()
    saved, probe = saved_activations(model), StreamProbe(model.residual, 8)
    model(tokens(1, 3), residual=probe)
    branch, _, _, redundancy = by_hand(model, saved, 7)  # bf16 activations, but float64 from there on
    assert probe.sites[7].branch_norm == pytest.approx(branch, rel=1e-4)
    assert probe.sites[7].redundancy == pytest.approx(redundancy, rel=1e-4)


def test_cosine_of_known_vectors():
    one, two = torch.tensor([[[3.0, 0.0]]]), torch.tensor([[[0.0, 0.5]]])
    assert mean_pairwise_cosine([one, 2 * one, 7 * one]).item() == pytest.approx(1)
    assert mean_pairwise_cosine([one, -one]).item() == pytest.approx(-1)
    assert mean_pairwise_cosine([one, two]).item() == pytest.approx(0)
    assert mean_pairwise_cosine([one, one, two]).item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-39])
def test_vectors_without_a_direction_have_cosine_zero(scale):
    one = torch.tensor([[[1.0, 0.0]]])
    assert mean_pairwise_cosine([one, one, scale * one]).item() == pytest.approx(1 / 3)
    assert mean_pairwise_cosine([scale * one, scale * one]).item() == 0


def test_zero_streams_give_numbers():
    model = tiny_model("delta-sublayer", null_source=True)
    with torch.no_grad():
        model.embed.weight.zero_()
    probe = StreamProbe(model.residual, 8)
    model(tokens(), residual=probe)
    for site, measured in probe.sites.items():
        assert (measured.strength, measured.stream_norm) == (0, 0)
        assert measured.redundancy == (None if site == 0 else 0)


def test_ranks_add_up():
    model, batch = scramble(tiny_model("delta-sublayer", gate="alpha")), tokens(3, 7)

    def measured(rows):
        probe = StreamProbe(model.residual, num_sites=8)
        model(rows, residual=probe)
        return probe

    together, first, second = measured(batch), measured(batch[:1]), measured(batch[1:])
    parts = []
    second.reduce(lambda sums: parts.append(sums) or sums)
    first.reduce(lambda sums: sums + parts[0])
    for site, expected in together.sites.items():
        for name, value in vars(expected).items():
            assert getattr(first.sites[site], name) == pytest.approx(value, rel=1e-6, abs=1e-6), name


def test_memory_does_not_grow_with_the_square_of_the_sources():
    """What one measurement of a site allocates at most, in units of a source [B, T, D]."""
    sources = [torch.randn(1, 64, 64) for _ in range(40)]
    with torch.profiler.profile(profile_memory=True) as recorded:
        mean_pairwise_cosine(sources)
    changes = [event.cpu_memory_usage for event in recorded.events() if event.name == "[memory]"]
    total, peak = 0, 0
    for change in changes:
        total += change
        peak = max(peak, total)
    assert 0 < peak <= 4 * sources[0].nbytes
