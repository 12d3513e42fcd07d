"""Sizes that do not fit together are refused by the name of the option; explicit sizes override a preset."""

import pytest
from tiny import tiny_config, tiny_model

from lightning_dar.errors import UsageError
from lightning_dar.model import resolve_config

SIZES = {"vocab_size": 31, "hidden_size": 16, "num_layers": 2, "num_heads": 4}


@pytest.mark.parametrize(
    "sizes, message",
    [
        ({"num_kv_heads": 3}, r"num_heads=4 must be a multiple of model\.num_kv_heads=3"),
        ({"num_kv_heads": 8}, r"num_heads=4 must be a multiple of model\.num_kv_heads=8"),
        ({"hidden_size": 18}, r"hidden_size=18 is not a multiple of model\.num_heads=4.*model\.head_dim"),
        ({"hidden_size": 20}, r"head_dim=5.*even"),
        ({"head_dim": 3}, r"head_dim=3.*even"),
        *(({"head_dim": 4, name: 0}, rf"model\.{name}=0: must be at least 1") for name in (*SIZES, "num_kv_heads")),
        ({"head_dim": 0}, r"model\.head_dim=0: must be at least 1"),
        ({"intermediate_size": -1}, r"model\.intermediate_size=-1: must be at least 1"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_sizes_that_cannot_work(sizes, message):
    with pytest.raises(UsageError, match=message):
        resolve_config(**{**SIZES, **sizes})


@pytest.mark.parametrize("missing", ["hidden_size", "num_layers", "num_heads"])
def test_missing_size(missing):
    sizes = {name: value for name, value in SIZES.items() if name != missing}
    with pytest.raises(UsageError, match=rf"model\.{missing} is not set.*220m"):
        resolve_config(**sizes)


def test_unknown_preset():
    with pytest.raises(UsageError, match=r"unknown preset '1b'; known: 220m, 533m, 1044m, 7\.6b, qwen3-0\.6b"):
        resolve_config("1b")


def test_defaults_of_explicit_sizes():
    config = resolve_config(**SIZES)
    assert (config.num_kv_heads, config.head_dim, config.intermediate_size) == (4, 4, 64)
    assert (config.norm_eps, config.rope_theta) == (1e-6, 10_000.0)
    assert (config.qk_norm, config.qkv_bias, config.tie_embeddings) == (True, False, True)


def test_explicit_sizes_override_the_preset():
    config = resolve_config("qwen3-0.6b", num_layers=2, rope_theta=5e5, qk_norm=False)
    assert (config.num_layers, config.rope_theta, config.qk_norm) == (2, 5e5, False)
    assert (config.hidden_size, config.head_dim, config.vocab_size) == (1024, 128, 151_936)


def test_open_vocabulary_is_refused_when_built():
    config = resolve_config(hidden_size=16, num_layers=2, num_heads=4)
    assert config.vocab_size is None
    with pytest.raises(UsageError, match=r"model\.vocab_size is not set"):
        tiny_model("standard", config)


def test_tied_and_separate_head():
    tied, separate = tiny_model(), tiny_model(config=tiny_config(tie_embeddings=False))
    assert "head.weight" not in tied.state_dict()
    assert separate.head.weight.data_ptr() != separate.embed.weight.data_ptr()
