"""`generate` of transformers with a routed model, in the forms that people use, and with every cache."""

import sys

import pytest
import torch
from hf_models import exported, opened, twins
from tiny import VOCAB, tiny_config
from transformers import CompileConfig, DynamicCache, GenerationConfig, StaticCache

from lightning_dar.model.generate import generate

PROMPTS = torch.randint(VOCAB, (2, 6), generator=torch.Generator().manual_seed(3))
GREEDY = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("generation") / "routed-generation"
    torch.manual_seed(0)
    return path, exported(path, "delta-block", tiny_config(tie_embeddings=False), num_blocks=2, gate="alpha")


@pytest.fixture(scope="module")
def model(folder):
    return opened(folder[0])


@pytest.fixture(scope="module")
def wanted(folder):
    """What our own generation says, a row at a time."""
    return torch.cat([generate(folder[1], row[None], 8, temperature=0) for row in PROMPTS])


FORMS = {
    "default": {},
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
    "dynamic cache": {"cache_implementation": "dynamic"},
    "a cache given": {"past_key_values": DynamicCache},
    "a static cache given": {"past_key_values": StaticCache},
    "prompt in pieces": {"prefill_chunk_size": 4},
    "a mask of ones": {"attention_mask": torch.ones_like(PROMPTS)},
}


@pytest.mark.parametrize("form", FORMS)
def test_greedy(model, wanted, form):
    options = dict(FORMS[form])
    kind = options.get("past_key_values")
    if kind is not None:
        room = {"max_cache_len": 20} if kind is StaticCache else {}
        options["past_key_values"] = kind(config=model.config, **room)
    assert torch.equal(model.generate(PROMPTS, **GREEDY, **options), wanted)


def test_from_embeddings(model, wanted):
    embeddings = model.get_input_embeddings()(PROMPTS)
    assert torch.equal(model.generate(inputs_embeds=embeddings, **GREEDY), wanted[:, 6:])


def test_looking_ahead_and_taking_back(model, folder, wanted):
    """Prompt lookup and an assistant: tokens that are not taken are cropped from the cache again."""
    assistant = opened(folder[0])
    for row, expected in zip(PROMPTS, wanted, strict=True):
        for ahead in ({"prompt_lookup_num_tokens": 3}, {"assistant_model": assistant}):
            assert torch.equal(model.generate(row[None], **GREEDY, **ahead)[0], expected)


def test_padded_on_the_left_as_single_ones(model, folder):
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), PROMPTS], 1)
    padded[1, 3:5] = 0
    mask = torch.ones_like(padded)
    mask[0, :3], mask[1, :5] = 0, 0
    single = [generate(folder[1], row[None], 8, temperature=0)[0, -8:] for row in (PROMPTS[0], PROMPTS[1, 2:])]
    single = torch.stack(single)
    for options in ({}, {"cache_implementation": "static"}, {"use_cache": False}):
        assert torch.equal(model.generate(padded, attention_mask=mask, **GREEDY, **options)[:, -8:], single)


def test_padding_on_the_right_is_said(model, monkeypatch):
    said = []
    logger = sys.modules[type(model).__module__].logger
    monkeypatch.setattr(logger, "warning_once", said.append)
    mask = torch.ones_like(PROMPTS)
    model.generate(PROMPTS, attention_mask=mask, **GREEDY)
    assert not said
    mask[0, -1] = 0
    model.generate(PROMPTS, attention_mask=mask, **GREEDY)
    assert said and "pad on the left" in said[0]


SAMPLED = {
    "sampling": {"do_sample": True, "top_k": 5, "temperature": 0.7},
    "beams": {"num_beams": 3, "num_return_sequences": 2, "do_sample": False},
    "several a prompt": {"do_sample": True, "num_return_sequences": 3},
    "beams and a static cache": {"num_beams": 2, "do_sample": False, "cache_implementation": "static"},
    "lookup": {"prompt_lookup_num_tokens": 2, "do_sample": False},
    "all that can be returned": {
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_hidden_states": True,
    },
}


@pytest.mark.parametrize("form", SAMPLED)
def test_as_qwen3_does(form):
    """At residual `standard`, with the same random numbers."""
    torch.manual_seed(0)
    both = twins()
    prompts = PROMPTS[:1] if form == "lookup" else PROMPTS
    found = []
    for model in both:
        torch.manual_seed(1)
        found.append(model.generate(prompts, max_new_tokens=6, pad_token_id=0, **SAMPLED[form]))
    ours, theirs = found
    if isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs)
        return
    assert list(ours) == list(theirs) and torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(ours.scores, theirs.scores, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.hidden_states, theirs.hidden_states, atol=1e-4, rtol=1e-4)


def test_a_misspelt_option_is_refused(model):
    with pytest.raises(ValueError, match="max_new_token"):
        model.generate(PROMPTS, max_new_token=3)


def test_compiled_for_a_static_cache_only_where_asked(model, monkeypatch):
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))  # where transformers would do it by itself
    cache = StaticCache(config=model.config, max_cache_len=20)
    caches = {"cache": cache, "past_key_values": cache}
    assert not model._valid_auto_compile_criteria(caches, GenerationConfig())
    assert model._valid_auto_compile_criteria(caches, GenerationConfig(compile_config=CompileConfig()))


def test_compiled(tmp_path):
    """With more layers than the compiler's limit of recompilations."""
    torch._dynamo.reset()
    exported(tmp_path / "routed-compiled", "delta-block", tiny_config(num_layers=9), num_blocks=9)
    model, options = opened(tmp_path / "routed-compiled"), {**GREEDY, "max_new_tokens": 3}
    text = model.generate(PROMPTS, **options)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        model.forward = torch.compile(model.forward, backend="eager")
        assert torch.equal(model.generate(PROMPTS, **options), text)
    torch._dynamo.reset()
