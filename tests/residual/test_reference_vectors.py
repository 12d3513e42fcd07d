"""The strategies compute what the authors' released code computes; see ../reference/README.md."""

import json
from pathlib import Path

import pytest
import torch
from released_layout import entry, load_released
from safetensors.torch import load_file
from tiny import gradients
from torch.nn import functional as F

from lightning_dar.model import build_transformer, resolve_config
from lightning_dar.residual import ResidualConfig

REFERENCE = Path(__file__).parents[1] / "reference"
STRATEGIES = {
    "standard": ResidualConfig(name="standard"),
    "attnres_block": ResidualConfig(name="attnres", options={"num_blocks": 2}),
    "attnres_full": ResidualConfig(name="attnres", options={"granularity": "sublayer"}),
    "delta_sublayer": ResidualConfig(name="delta-sublayer"),
    "delta_block_released": ResidualConfig(name="delta-block", options={"block_delta": "released", "num_blocks": 2}),
    "delta_sublayer_alpha_gate": ResidualConfig(name="delta-sublayer", options={"gate": "alpha"}),
    "delta_sublayer_null": ResidualConfig(name="delta-sublayer", options={"null_source": True}),
}


def load_model(folder):
    sizes = json.loads((REFERENCE / folder / "config.json").read_text())
    config = resolve_config(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        num_layers=sizes["num_hidden_layers"],
        num_heads=sizes["num_attention_heads"],
        num_kv_heads=sizes["num_key_value_heads"],
        head_dim=sizes["head_dim"],
        intermediate_size=sizes["intermediate_size"],
        norm_eps=sizes["rms_norm_eps"],
        rope_theta=sizes["rope_theta"],
    )
    model = build_transformer(config, STRATEGIES[folder])
    load_released(model, load_file(REFERENCE / folder / "model.safetensors"))
    return model


def next_token_loss(logits, input_ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())


def test_every_folder_is_checked():
    assert {path.name for path in REFERENCE.iterdir() if path.is_dir()} == set(STRATEGIES)


@pytest.mark.parametrize("folder", STRATEGIES)
def test_logits_and_loss(folder):
    model, expected = load_model(folder), load_file(REFERENCE / folder / "expected.safetensors")
    logits = model(expected["input_ids"])
    torch.testing.assert_close(logits, expected["logits"], atol=1e-4, rtol=0)
    loss = next_token_loss(logits, expected["input_ids"])
    torch.testing.assert_close(loss, expected["loss"].squeeze(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("folder", STRATEGIES)
def test_every_gradient(folder):
    model, expected = load_model(folder), load_file(REFERENCE / folder / "expected.safetensors")
    grads = gradients(model, next_token_loss(model(expected["input_ids"]), expected["input_ids"]))
    for name, weight in load_file(REFERENCE / folder / "model.safetensors").items():
        ours = entry(grads, name, model.config.num_layers)
        theirs = expected.get(f"grad/{name}", torch.zeros_like(weight)).reshape(ours.shape)
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm(), name  # zero where theirs is zero
