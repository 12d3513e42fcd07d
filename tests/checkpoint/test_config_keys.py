"""config.json key by key, absent, null and odd: logits as transformers computes them from that folder, or the key is
refused by name."""

import json
import re

import pytest
import torch
from foreign import LLAMA3, make
from transformers import AutoModelForCausalLM

from lightning_dar import load_model
from lightning_dar.errors import DataError

ABSENT = object()
FAMILIES = ("qwen3", "qwen2", "llama", "mistral")
DEFAULT = {"rope_type": "default", "rope_theta": 200.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALING = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
ROPE = {
    "no rope keys": {},
    "theta alone": {"rope_theta": 300.0},
    "theta null": {"rope_theta": None},
    "theta text": {"rope_theta": "10000"},
    "parameters": {"rope_parameters": DEFAULT},
    "parameters over theta": {"rope_parameters": DEFAULT, "rope_theta": 300.0},
    "parameters without theta": {"rope_parameters": {"rope_type": "default"}, "rope_theta": 300.0},
    "parameters null": {"rope_parameters": None, "rope_scaling": None, "rope_theta": 300.0},
    "parameters llama3": {"rope_parameters": LLAMA3},
    "scaling llama3, theta beside": {"rope_scaling": SCALING, "rope_theta": 300.0},
    "scaling llama3, theta inside": {"rope_scaling": {**SCALING, "rope_theta": 250.0}, "rope_theta": 300.0},
    "scaling llama3, no theta": {"rope_scaling": SCALING},
    "scaling llama3 as type": {"rope_scaling": {**SCALING, "type": "llama3", "rope_type": "llama3"}},
    "scaling llama3, old name": {
        "rope_scaling": {**{k: v for k, v in SCALING.items() if k != "rope_type"}, "type": "llama3"}
    },
    "scaling beside parameters": {"rope_scaling": SCALING, "rope_parameters": DEFAULT, "rope_theta": 300.0},
    "scaling beside parameters, no theta": {"rope_scaling": SCALING, "rope_parameters": DEFAULT},
    "default scaling beside llama3": {"rope_scaling": {"type": "default"}, "rope_parameters": LLAMA3},
    "empty scaling beside llama3": {"rope_scaling": {}, "rope_parameters": LLAMA3},
    "yarn by hand": {"rope_scaling": YARN, "rope_parameters": DEFAULT, "rope_theta": 200.0},
    "yarn by hand, old name": {"rope_scaling": {**YARN, "type": "yarn"}, "rope_parameters": DEFAULT},
    "yarn in parameters": {"rope_parameters": {**YARN, "rope_theta": 200.0}},
    "yarn under null scaling": {"rope_scaling": None, "rope_parameters": {**YARN, "rope_theta": 200.0}},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 300.0},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "rope_parameters": DEFAULT},
    "type against rope_type": {"rope_scaling": {**SCALING, "type": "default"}},
    "rope_type null": {"rope_parameters": {"rope_type": None, "rope_theta": 200.0}},
    "factor without a type": {"rope_scaling": {"factor": 4.0}, "rope_theta": 300.0},
    "llama3 without a type": {"rope_scaling": {k: v for k, v in SCALING.items() if k != "rope_type"}},
    "by layer": {"rope_parameters": {"full_attention": DEFAULT, "sliding_attention": {**DEFAULT, "rope_theta": 10.0}}},
    "llama3 positions null": {"rope_scaling": {**SCALING, "original_max_position_embeddings": None}},
    "llama3 positions beside": {"rope_scaling": SCALING, "original_max_position_embeddings": 64},
    "llama3 positions fractional": {"rope_scaling": {**SCALING, "original_max_position_embeddings": 32.5}},
    "partial rotary": {"partial_rotary_factor": 0.5, "rope_theta": 300.0},
    "partial rotary null": {"partial_rotary_factor": None, "rope_theta": 300.0},
    "partial rotary inside": {"rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.5}},
    "whole rotary": {"partial_rotary_factor": 1.0, "rope_parameters": {**DEFAULT, "partial_rotary_factor": 1.0}},
    "a list": {"rope_parameters": [1, 2]},
}
ABSENT_OR_NULL = (
    "head_dim",
    "num_key_value_heads",
    "rms_norm_eps",
    "tie_word_embeddings",
    "hidden_act",
    "attention_bias",
    "sliding_window",
    "layer_types",
    "vocab_size",
    "is_causal",
)
THIRD_SLIDES = ["full_attention", "full_attention", "sliding_attention"]
KEYS = {
    **{f"{key} {name}": {key: value} for key in ABSENT_OR_NULL for name, value in (("absent", ABSENT), ("null", None))},
    "one head of keys": {"num_key_value_heads": 1},
    "all heads of keys": {"num_key_value_heads": 4},
    "epsilon": {"rms_norm_eps": 0.1},
    "epsilon text": {"rms_norm_eps": "1e-5"},
    "tied text": {"tie_word_embeddings": "false"},
    "tied number": {"tie_word_embeddings": 1},
    "tied": {"tie_word_embeddings": True},
    "gelu": {"hidden_act": "gelu"},
    "swish": {"hidden_act": "swish"},
    "attention bias": {"attention_bias": True},
    "mlp bias": {"mlp_bias": True},
    "window": {"sliding_window": 8},
    "window used": {"sliding_window": 8, "use_sliding_window": True, "layer_types": None, "max_window_layers": 0},
    "window of one layer": {"sliding_window": 8, "use_sliding_window": True, "layer_types": THIRD_SLIDES},
    "window not used": {"sliding_window": 8, "use_sliding_window": False, "layer_types": THIRD_SLIDES},
    "window, all layers full": {"sliding_window": 8, "layer_types": ["full_attention"] * 3},
    "layer types too few": {"layer_types": ["full_attention"]},
    "not causal": {"is_causal": False},
    "layers that differ": {"per_layer_config": {"0": {"num_key_value_heads": 4}}},
    "vocabulary beyond the embedding": {"vocab_size": 120},
    "vocabulary below the embedding": {"vocab_size": 60},
    "fewer layers": {"num_hidden_layers": 2},
    "head width": {"head_dim": 16},
    "mixture": {"num_local_experts": 4},
    "dtype": {"dtype": "float32", "torch_dtype": "bfloat16"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """family -> a folder of it, whose head is not its embedding, and its config.json."""
    made = {}
    for family in FAMILIES:
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp(family)
        make(family, tie_word_embeddings=False).save_pretrained(folder)
        made[family] = folder, json.loads((folder / "config.json").read_text())
    return made


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("table", [ROPE, KEYS], ids=["rope", "keys"])
def test_as_transformers_or_refused_by_name(table, family, folders):
    folder, config = folders[family]
    if table is ROPE:
        config = {key: value for key, value in config.items() if not key.startswith("rope_")}
    input_ids = torch.randint(60, (1, 90))
    compared = []
    for name, changes in table.items():
        changed = {key: value for key, value in {**config, **changes}.items() if value is not ABSENT}
        (folder / "config.json").write_text(json.dumps(changed))
        try:
            found = load_model(folder)(input_ids)
        except DataError as error:
            assert "\n" not in str(error), name
            keys = re.findall(r'"(\w+)": ', json.dumps(changes, default=str))
            named = any(key in str(error) for key in (*keys, "num_kv_heads", "do not fit config.json"))
            assert named, (name, str(error))
            continue
        try:
            expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(input_ids).logits
        except Exception:  # whatever a value of the wrong kind leads to there: no truth to compare with
            continue
        difference = (found - expected).abs().max()
        assert difference < 5e-5, (name, difference)
        compared.append(name)
    assert len(compared) >= 12, compared
