"""The routed model for transformers at residual `standard` against Qwen3 of transformers, argument by argument."""

from functools import partial

import pytest
import torch
from hf_models import twins
from tiny import VOCAB
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.modeling_outputs import ModelOutput

BATCH, LENGTH = 2, 9
IDS = torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
LABELS = IDS.masked_fill(torch.arange(LENGTH) % 4 == 0, -100)
LEFT = (torch.arange(LENGTH) >= torch.tensor([[3], [0]])).long()
RIGHT = LEFT.flip(1)
PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1]])
EMBEDS = torch.randn(BATCH, LENGTH, 16, generator=torch.Generator().manual_seed(2))
BLOCKS = (PACKED.cumsum(1) >= 0) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
BOOL_4D = (BLOCKS & (torch.arange(LENGTH)[:, None] % 3 != torch.arange(LENGTH)) | torch.eye(LENGTH, dtype=torch.bool))[
    None, None
].expand(BATCH, 1, -1, -1)
FLOAT_4D = torch.zeros(BOOL_4D.shape).masked_fill(~BOOL_4D, torch.finfo(torch.float32).min)

CASES = {
    "ids": {"input_ids": IDS},
    "one row": {"input_ids": IDS[:1]},
    "embeddings": {"inputs_embeds": EMBEDS},
    "labels": {"input_ids": IDS, "labels": LABELS},
    "embeddings and labels": {"inputs_embeds": EMBEDS, "labels": LABELS},
    "items as a number": {"input_ids": IDS, "labels": LABELS, "num_items_in_batch": 40},
    "items as a tensor": {"input_ids": IDS, "labels": LABELS, "num_items_in_batch": torch.tensor(40)},
    "shifted labels": {"input_ids": IDS, "labels": IDS, "shift_labels": LABELS},
    "other ignored index": {"input_ids": IDS, "labels": IDS, "ignore_index": int(IDS[0, 0])},
    "padded left": {"input_ids": IDS, "attention_mask": LEFT, "labels": LABELS},
    "padded right": {"input_ids": IDS, "attention_mask": RIGHT, "labels": LABELS},
    "padded, bool": {"input_ids": IDS, "attention_mask": LEFT.bool()},
    "all seen": {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)},
    "packed": {"input_ids": IDS[:1], "position_ids": PACKED, "labels": IDS[:1]},
    "packed rows": {"input_ids": IDS, "position_ids": torch.cat([PACKED, PACKED.flip(1).argsort(1)])},
    "packed beside a mask": {"input_ids": IDS[:1], "position_ids": PACKED, "attention_mask": torch.ones(1, LENGTH)},
    "positions with gaps": {"input_ids": IDS, "position_ids": torch.arange(LENGTH)[None] * 5 + 100},
    "bool mask for every pair": {"input_ids": IDS, "attention_mask": BOOL_4D},
    "float mask for every pair": {"input_ids": IDS, "attention_mask": FLOAT_4D, "labels": LABELS},
    "last logits": {"input_ids": IDS, "logits_to_keep": 2},
    "chosen logits": {"input_ids": IDS, "logits_to_keep": torch.tensor([1, 5, 8])},
    "chosen logits a row": {"input_ids": IDS, "logits_to_keep": torch.tensor([[1, 5], [0, 8]])},
    "logits where true": {"input_ids": IDS, "logits_to_keep": LABELS > 0},
    "hidden states": {"input_ids": IDS, "output_hidden_states": True},
    "one hidden state": {"input_ids": IDS, "output_hidden_states": -1},
    "some hidden states": {"input_ids": IDS, "output_hidden_states": [3, 0]},
    "a tuple": {"input_ids": IDS, "labels": LABELS, "return_dict": False, "output_hidden_states": True},
    "no cache": {"input_ids": IDS, "use_cache": False},
    "empty cache": {"input_ids": IDS, "past_key_values": DynamicCache},
    "flash's lengths": {"input_ids": IDS[:1], "cu_seq_lens_q": torch.tensor([0, LENGTH]), "max_length_q": LENGTH},
}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def pair(request):
    torch.manual_seed(0)
    return twins(request.param)


@pytest.fixture(scope="module")
def tied():
    torch.manual_seed(0)
    return twins()


def call(model, arguments):
    """The output, caches made afresh."""
    made = {name: value() if isinstance(value, type) else value for name, value in arguments.items()}
    return model(**made)


def assert_same(ours, theirs, path="output"):
    assert type(ours) is type(theirs), f"{path}: {type(ours)} is not {type(theirs)}"
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5, msg=lambda text: f"{path}: {text}")
    elif isinstance(theirs, ModelOutput):
        assert list(ours) == list(theirs), path
        for name in theirs:
            assert_same(ours[name], theirs[name], f"{path}.{name}")
    elif isinstance(theirs, tuple):
        assert len(ours) == len(theirs), path
        for number, both in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*both, f"{path}[{number}]")
    elif isinstance(theirs, DynamicCache):
        assert ours.get_seq_length() == theirs.get_seq_length()
        for layer, both in enumerate(zip(ours.layers, theirs.layers, strict=True)):
            assert_same(both[0].keys, both[1].keys, f"{path}.keys[{layer}]")
            assert_same(both[0].values, both[1].values, f"{path}.values[{layer}]")


@pytest.mark.parametrize("case", CASES)
def test_an_argument_means_what_it_means_to_qwen3(pair, case):
    ours, theirs = (call(model, CASES[case]) for model in pair)
    assert_same(ours, theirs)


@pytest.mark.parametrize("case", CASES)
def test_under_eager_attention_too(tied, case):
    for model in tied:
        model.set_attn_implementation("eager")
    try:
        if case == "bool mask for every pair":  # Qwen3 adds it to the scores as numbers
            ours, theirs = call(tied[0], CASES[case]), call(tied[1], {**CASES[case], "attention_mask": FLOAT_4D})
        else:
            ours, theirs = (call(model, {**CASES[case], "output_attentions": True}) for model in tied)
        assert_same(ours, theirs)
    finally:
        for model in tied:
            model.set_attn_implementation("sdpa")


@pytest.mark.parametrize("case", [name for name, arguments in CASES.items() if "labels" in arguments])
def test_gradients(pair, case):
    found = []
    for model in pair:
        model.zero_grad()
        output = call(model, CASES[case])
        (output[0] if isinstance(output, tuple) else output.loss).backward()
        q_proj = (
            model.model.sublayers[2].q_proj
            if hasattr(model.model, "sublayers")
            else (model.model.layers[1].self_attn.q_proj)
        )
        weights = (model.get_input_embeddings().weight, model.get_output_embeddings().weight, q_proj.weight)
        found.append(tuple(torch.zeros(()) if weight.grad is None else weight.grad for weight in weights))
        model.zero_grad()
    assert_same(*found)


def test_a_cache_from_call_to_call(pair):
    """Text in three pieces, padded on the left, with every keyword that a cache brings."""
    found = []
    for model in pair:
        cache, pieces = DynamicCache(config=model.config), []
        for start, stop in ((0, 4), (4, 5), (5, LENGTH)):
            out = model(IDS[:, start:stop], attention_mask=LEFT[:, :stop], past_key_values=cache, use_cache=True)
            assert out.past_key_values is cache
            pieces.append(out.logits)
        found.append(torch.cat(pieces, 1))
    assert_same(*found)
    assert_same(found[0], pair[0](IDS, attention_mask=LEFT).logits)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_static_cache(tied, implementation):
    found = []
    for model in tied:
        model.set_attn_implementation(implementation)
        cache, pieces = StaticCache(config=model.config, max_cache_len=16), []
        for start, stop in ((0, 4), (4, 5), (5, LENGTH)):
            out = model(IDS[:, start:stop], attention_mask=LEFT[:, :stop], past_key_values=cache)
            pieces.append(out.logits)
        found.append(torch.cat(pieces, 1))
        model.set_attn_implementation("sdpa")
    assert_same(*found)
    seen = LEFT.bool()
    assert_same(found[0][seen], tied[0](IDS, attention_mask=LEFT).logits[seen])


@pytest.mark.parametrize("field, value", [("output_hidden_states", True), ("use_cache", False)])
def test_the_configs_switches(tied, field, value):
    before = [getattr(model.config, field) for model in tied]
    try:
        for model in tied:
            setattr(model.config, field, value)
        assert_same(*(model(IDS, labels=LABELS) for model in tied))
    finally:
        for model, old in zip(tied, before, strict=True):
            setattr(model.config, field, old)


def test_a_tuple_by_the_config(tied):
    ours, theirs = tied
    ours.config.return_dict = False
    try:  # Qwen3 itself fails at this setting in some versions
        assert_same(ours(IDS, labels=LABELS), theirs(IDS, labels=LABELS, return_dict=False))
    finally:
        ours.config.return_dict = True


def test_attentions_by_the_config():
    torch.manual_seed(0)
    ours, theirs = twins(attn_implementation="eager", output_attentions=True)
    assert_same(ours(IDS), theirs(IDS))


def test_the_base_model(pair):
    """`model.model`, which libraries call for hidden states."""
    ours, theirs = (model.get_decoder() for model in pair)
    assert ours is pair[0].base_model is pair[0].model
    assert_same(ours(IDS, attention_mask=LEFT), theirs(IDS, attention_mask=LEFT))
    assert_same(ours(inputs_embeds=EMBEDS, use_cache=False), theirs(inputs_embeds=EMBEDS, use_cache=False))
    assert_same(ours(IDS, return_dict=False), theirs(IDS, return_dict=False))


def sliding_cache(config):
    config = type(config)(lightning_dar=config.lightning_dar)
    config.sliding_window, config.layer_types = 4, ["sliding_attention"] * 4
    return DynamicCache(config=config)


REFUSED = {
    "misspelt": (
        TypeError,
        "argument 'postion_ids'; did you mean 'position_ids'",
        {"postion_ids": 1},
    ),
    "of other models": (TypeError, "unexpected keyword argument 'decoder_input_ids'", {"decoder_input_ids": IDS}),
    "segments": (TypeError, "unexpected keyword argument 'token_type_ids'", {"token_type_ids": torch.ones_like(IDS)}),
    "attentions of a fused kernel": (ValueError, 'attn_implementation="eager"', {"output_attentions": True}),
    "experts": (ValueError, "output_router_logits", {"output_router_logits": True}),
    "both directions": (ValueError, "is_causal=False", {"is_causal": False}),
    "both inputs": (ValueError, "exactly one of input_ids or inputs_embeds", {"inputs_embeds": EMBEDS}),
    "a former cache": (TypeError, "past_key_values is a tuple", {"past_key_values": ()}),
    "two caches": (
        ValueError,
        "one of cache and past_key_values",
        {"past_key_values": DynamicCache, "cache": DynamicCache},
    ),
    "a pair of caches": (
        TypeError,
        "past_key_values is a EncoderDecoderCache",
        {"past_key_values": partial(EncoderDecoderCache, DynamicCache(), DynamicCache())},
    ),
    "numbers for every pair": (ValueError, r"is torch.int64: it must be bool", {"attention_mask": BOOL_4D.long()}),
    "three dimensions": (ValueError, r"attention_mask has shape \[2, 9, 9\]", {"attention_mask": BOOL_4D[:, 0]}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(tied, case):
    error, message, arguments = REFUSED[case]
    made = {name: value() if callable(value) else value for name, value in arguments.items()}
    with pytest.raises(error, match=message):
        tied[0](IDS, **made)


def test_a_cache_that_drops_tokens_is_refused(tied):
    with pytest.raises(ValueError, match="of sliding windows: this model attends to all earlier tokens"):
        tied[0](IDS, past_key_values=sliding_cache(tied[0].config))


def test_nothing_said_with_none_or_one_segment(tied):
    plain = tied[0](IDS).logits
    assert torch.equal(tied[0](IDS, token_type_ids=torch.zeros_like(IDS), pixel_values=None).logits, plain)
