"""Initial weights: every parameter is set, from meta as well, and at the configured scale."""

import pytest
import torch
from tiny import tiny_config, tiny_model, variant
from torch import nn

from lightning_dar.residual import available_residuals

VARIANTS = [*map(variant, available_residuals()), variant("delta-sublayer", gate="alpha", null_source=True)]


@pytest.mark.parametrize("name, options", VARIANTS)
def test_meta_device_then_init_equals_direct_init(name, options):
    config = tiny_config(qkv_bias=True, tie_embeddings=False)
    direct = tiny_model(name, config, **options)
    with torch.device("meta"):
        late = tiny_model(name, config, **options)
    assert all(tensor.is_meta for tensor in late.state_dict().values())
    late.to_empty(device="cpu")
    for parameter in late.parameters():
        nn.init.constant_(parameter, torch.nan)
    for model in (direct, late):
        torch.manual_seed(3)
        model.init_weights()
    torch.testing.assert_close(late.state_dict(), direct.state_dict(), rtol=0, atol=0)


def test_scale_of_every_kind_of_parameter():
    config = tiny_config(hidden_size=64, vocab_size=512, init_std=0.05, qkv_bias=True, tie_embeddings=False)
    model = tiny_model("standard", config)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            assert parameter.eq(0).all(), name
        elif "norm" in name:
            assert parameter.eq(1).all(), name
        else:
            assert parameter.std().item() == pytest.approx(0.05, rel=0.1), name
            assert abs(parameter.mean().item()) < 0.005, name
