"""`generate` continues a prompt with the model's own choices."""

import pytest
import torch
from tiny import scramble, tiny_model, tokens

from lightning_dar.model.generate import generate


@pytest.fixture
def model():
    return scramble(tiny_model("delta-sublayer"))


def by_full_forward(model, ids, steps, context=None):
    for _ in range(steps):
        seen = ids if context is None else ids[:, -context:]
        ids = torch.cat([ids, model(seen)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return ids


@pytest.mark.parametrize("context", [None, 3])
def test_temperature_0_takes_the_most_likely(model, context):
    prompt = tokens(1, 4)
    produced = generate(model, prompt, 8, temperature=0, context=context)
    assert torch.equal(produced, by_full_forward(model, prompt, 8, context))


def test_top_1_is_the_most_likely_at_any_temperature(model):
    prompt = tokens(1, 4)
    produced = generate(model, prompt, 8, temperature=5.0, top_k=1)
    assert torch.equal(produced, by_full_forward(model, prompt, 8))


def test_samples_follow_the_model_and_stay_in_the_top_k(model):
    prompt = tokens(1, 4)
    probabilities = (model(prompt)[0, -1] / 2.0).softmax(-1)
    top = probabilities.topk(3).indices
    drawn = torch.cat([generate(model, prompt, 1, temperature=2.0, top_k=3)[:, -1] for _ in range(200)])
    counts = drawn.bincount(minlength=31)
    assert counts[top].sum() == 200
    expected = probabilities[top] / probabilities[top].sum()
    torch.testing.assert_close(counts[top] / 200, expected, atol=0.12, rtol=0)


def test_a_seed_gives_the_same_text(model):
    def sample(seed):
        return generate(model, torch.zeros(1, 1, dtype=torch.long), 20, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))


def test_top_p_keeps_the_fewest_tokens_that_reach_it(model):
    prompt = tokens(1, 4)
    probabilities = (model(prompt)[0, -1] / 2.0).softmax(-1)
    ordered = probabilities.sort(descending=True)
    kept = ordered.indices[: int((ordered.values.cumsum(0) < 0.6).sum()) + 1]
    drawn = torch.cat([generate(model, prompt, 1, temperature=2.0, top_p=0.6)[:, -1] for _ in range(200)])
    assert 1 < len(kept) < 31
    assert set(drawn.tolist()) <= set(kept.tolist())
    assert len(drawn.unique()) > 1


def test_a_tiny_top_p_is_the_most_likely(model):
    prompt = tokens(1, 4)
    assert torch.equal(generate(model, prompt, 8, top_p=1e-9), by_full_forward(model, prompt, 8))
