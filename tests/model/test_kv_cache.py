"""Cached decoding is uncached decoding, token for token, for every strategy."""

import pytest
import torch
from tiny import scramble, tiny_config, tiny_model, tokens, variant

from lightning_dar.model import RopeScaling
from lightning_dar.model.generate import generate
from lightning_dar.model.layer import KVCache
from lightning_dar.residual import available_residuals

VARIANTS = [*map(variant, available_residuals()), variant("delta-sublayer", gate="alpha", null_source=True)]
STEPS = 32


@pytest.mark.parametrize("temperature", [0, 2.0], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name, options", VARIANTS)
def test_the_same_token_for_token(name, options, temperature):
    model, prompt = scramble(tiny_model(name, **options)), tokens(1, 5)

    def produce(use_cache):
        seed = torch.Generator().manual_seed(0)
        return generate(model, prompt, STEPS, temperature=temperature, use_cache=use_cache, generator=seed)

    assert torch.equal(produce(True), produce(False))
    assert temperature == 0 or produce(True).unique().numel() > 10


@pytest.mark.parametrize("parts", [[7, 1, 1], [1] * 9, [3, 4, 2]], ids=["prompt", "steps", "chunks"])
def test_logits_do_not_depend_on_how_the_tokens_arrive(parts):
    scaling = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=4)
    model = scramble(tiny_model("delta-block", tiny_config(rope_scaling=scaling), num_blocks=2))
    input_ids, cache = tokens(2, 9), KVCache()
    whole = model(input_ids)
    pieces = [model(piece, cache=cache) for piece in input_ids.split(parts, dim=1)]
    assert cache.length == 9
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-5, rtol=1e-5)


def test_documents_stay_apart_across_the_cache():
    model, input_ids, cache = scramble(tiny_model("delta-sublayer")), tokens(2, 9), KVCache()
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1, 1, 2]])
    whole = model(input_ids, documents)
    model(input_ids[:, :6], documents[:, :6], cache=cache)
    rest = model(input_ids[:, 6:], documents, cache=cache)
    torch.testing.assert_close(rest, whole[:, 6:], atol=1e-5, rtol=1e-5)
    assert (whole - model(input_ids)).abs().max() > 0.1


def test_each_step_processes_one_token(monkeypatch):
    model = scramble(tiny_model("delta-sublayer"))
    lengths, forward = [], model.forward
    monkeypatch.setattr(model, "forward", lambda ids, *args, **kw: lengths.append(ids.shape[1]) or forward(ids, **kw))
    generate(model, tokens(1, 5), 4)
    assert lengths == [5, 1, 1, 1]
