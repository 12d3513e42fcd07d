"""The routing probe against weights computed apart, and what it must not change."""

import math

import pytest
import torch
from tiny import scramble, tiny_model, tokens

from lightning_dar.diagnostics.probe import RoutingProbe, SiteRouting, depth_third, mean_sharpness


@pytest.mark.parametrize("name", ["delta-sublayer", "delta-block", "attnres", "cumulative-additive"])
def test_a_probed_forward_is_the_forward_bit_for_bit(name):
    model, ids = scramble(tiny_model(name)), tokens()
    assert torch.equal(model(ids), model(ids, residual=RoutingProbe(model.residual, 8)))


def test_sums_agree_with_weights_from_the_definition():
    model, batches = scramble(tiny_model("delta-sublayer")), [tokens(2, 7), tokens(3, 5)]
    probe = RoutingProbe(model.residual, 8)
    sources: dict[int, list[torch.Tensor]] = {}

    def note(number):  # every sublayer's output, and the embedding, token by token
        return lambda module, args, out: sources.setdefault(number, []).append(out.detach().flatten(0, -2).double())

    model.embed.register_forward_hook(note(0))
    for site, sublayer in enumerate(model.sublayers):
        sublayer.register_forward_hook(note(site + 1))
    for ids in batches:
        model(ids, residual=probe)

    assert list(probe.sites) == list(range(1, 8)), "site 0 reads no sources"
    for site, routing in probe.sites.items():
        values = torch.stack([torch.cat(sources[number]) for number in range(site + 1)], dim=1)  # [tokens, n, D]
        keys = values * (values.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * model.residual.gain[site].double()
        weights = (keys @ model.residual.query[site].double()).softmax(-1)
        assert routing.tokens == 2 * 7 + 3 * 5
        assert routing.sharpness == pytest.approx(weights.amax(-1).mean().item(), rel=1e-5)
        entropy = -(weights * weights.log()).sum(-1).mean().item() / math.log(site + 1)
        assert routing.entropy == pytest.approx(entropy, rel=1e-4)
        torch.testing.assert_close(routing.mean_weights, weights.mean(0), rtol=1e-4, atol=1e-6)
        effective = [math.exp(-sum(a * math.log(a) for a in token)) for token in weights.tolist()]
        assert routing.effective_sources == pytest.approx(sum(effective) / 29, rel=1e-4)
        picked = [token.index(max(token)) for token in weights.tolist()]
        assert routing.share_embedding == pytest.approx(picked.count(0) / 29)
        assert routing.share_newest == pytest.approx(picked.count(site) / 29)
        assert routing.share_older == pytest.approx(sum(0 < source < site for source in picked) / 29)


@pytest.mark.parametrize("name", ["delta-sublayer", "delta-block", "attnres", "cumulative-replacement"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zero_queries_are_uniform_with_entropy_one(name, dtype):
    model = tiny_model(name).to(dtype)
    probe = RoutingProbe(model.residual, 8)
    model(tokens(), residual=probe)
    assert len(probe.sites) >= 6
    for routing in probe.sites.values():
        uniform = pytest.approx(1 / routing.num_sources, rel=1e-7)  # a float32 as near to 1/n as there is
        assert routing.sharpness == uniform
        assert all(weight == uniform for weight in routing.mean_weights.tolist())
        assert routing.entropy == pytest.approx(1, rel=1e-7)
        assert routing.effective_sources == pytest.approx(routing.num_sources, rel=1e-6)
        assert routing.share_embedding == pytest.approx(1 / routing.num_sources), "a tie is shared"
        assert routing.share_newest == pytest.approx(1 / routing.num_sources)


def test_a_query_along_one_source_picks_it():
    model = scramble(tiny_model("delta-sublayer"))
    ids = torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        embedding = model.embed(ids)[0, 0]
        model.residual.gain.fill_(1)
        model.residual.query.copy_(1e4 * embedding)
    probe = RoutingProbe(model.residual, 8)
    model(ids, residual=probe)
    for routing in probe.sites.values():
        assert routing.mean_weights[0].item() == pytest.approx(1, abs=1e-6)
        assert routing.sharpness == pytest.approx(1, abs=1e-6)
        assert routing.entropy == pytest.approx(0, abs=1e-6)
        assert routing.effective_sources == pytest.approx(1, abs=1e-6)
        assert (routing.share_embedding, routing.share_newest, routing.share_older) == (1, 0, 0)


def test_a_null_source_counts_as_older_and_the_embedding_never_as_newest():
    model = scramble(tiny_model("delta-block", null_source=True))
    with torch.no_grad():
        model.residual.null_source.zero_()  # its logit is 0; so are all others with a query of zero
        model.residual.query.zero_()
    probe = RoutingProbe(model.residual, 8)
    model(tokens(), residual=probe)
    first = probe.sites[1]
    assert (first.num_sources, first.share_embedding, first.share_newest, first.share_older) == (2, 0.5, 0, 0.5)
    third = probe.sites[7]
    assert third.num_sources == 5
    shares = (third.share_embedding, third.share_newest, third.share_older)
    assert shares == pytest.approx((1 / 5, 1 / 5, 3 / 5))


def test_standard_has_no_routed_sites():
    model = tiny_model("standard")
    probe = RoutingProbe(model.residual, 8)
    model(tokens(), residual=probe)
    assert probe.sites == {}
    assert mean_sharpness(probe.sites, 8) is None


def test_the_final_read_of_attnres_is_a_site_of_its_own():
    model = tiny_model("attnres", granularity="sublayer")
    probe = RoutingProbe(model.residual, 8)
    model(tokens(), residual=probe)
    assert list(probe.sites) == list(range(1, 9))
    assert probe.sites[8].num_sources == 9
    deepest = [1 / (site + 1) for site in (6, 7, 8)]
    assert mean_sharpness(probe.sites, 8, third="deep") == pytest.approx(sum(deepest) / 3, abs=1e-6)


def test_ranks_add_up():
    model, batch = scramble(tiny_model("delta-sublayer")), tokens(3, 7)

    def measured(rows):
        probe = RoutingProbe(model.residual, num_sites=8)
        model(rows, residual=probe)
        return probe

    together, first, second = measured(batch), measured(batch[:1]), measured(batch[1:])
    parts = []  # each rank's contribution to its one exchange
    second.reduce(lambda sums: parts.append(sums) or sums)
    first.reduce(lambda sums: parts.append(sums) or sums + parts[0])
    assert len(parts) == 2
    assert first.sites.keys() == together.sites.keys() == set(range(1, 8))
    for site, expected in together.sites.items():
        assert first.sites[site].tokens == 21
        assert first.sites[site].sharpness == pytest.approx(expected.sharpness)
        assert first.sites[site].entropy == pytest.approx(expected.entropy)
        torch.testing.assert_close(first.sites[site].mean_weights, expected.mean_weights)


def site_with(sharpness):
    sums = dict.fromkeys(("entropy_sum", "effective_sum", "embedding_sum", "newest_sum"), 0.0)
    return SiteRouting(tokens=1.0, max_sum=sharpness, weight_sums=torch.ones(2), **sums)


@pytest.mark.parametrize("num_sites", [6, 8, 9, 72])
def test_thirds_agree_with_the_deepest_third(num_sites):
    thirds = [depth_third(site, num_sites) for site in range(num_sites + 1)]
    deep = [site for site in range(num_sites + 1) if site >= num_sites * 2 / 3]
    assert [site for site, third in enumerate(thirds) if third == "deep"] == deep
    assert thirds.count("shallow") == math.ceil(num_sites / 3)
    assert sorted(thirds, key=["shallow", "middle", "deep"].index) == thirds


@pytest.mark.parametrize("num_sites", [6, 8, 18, 24, 36, 72])
def test_deepest_third(num_sites):
    deep = math.floor(num_sites / 3)
    sites = {site: site_with(1.0 if site >= num_sites - deep else 0.0) for site in range(num_sites)}
    assert mean_sharpness(sites, num_sites, third="deep") == 1.0
    assert mean_sharpness(sites, num_sites) == pytest.approx(deep / num_sites)
    sites[num_sites - deep] = site_with(0.0)  # the first of the third counts
    assert mean_sharpness(sites, num_sites, third="deep") == pytest.approx((deep - 1) / deep)
