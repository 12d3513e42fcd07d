"""Initial weights: every parameter is set, from meta as well, and at the configured scale."""

from dataclasses import asdict

import pytest
import torch
from tiny import tiny_config, tiny_model, variant
from torch import nn

from lightning_dar.model import TransformerConfig, resolve_config
from lightning_dar.model.config import PRESETS
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


def scales(**options) -> dict[str, float]:
    """Standard deviation of every matrix of a network whose matrices all are large."""
    sizes = {"hidden_size": 64, "vocab_size": 512, "intermediate_size": 256, "num_layers": 8}
    config = tiny_config(**sizes, qkv_bias=True, tie_embeddings=False, **options)
    found = {}
    for name, parameter in tiny_model("standard", config).named_parameters():
        if name.endswith(".bias"):
            assert parameter.eq(0).all(), name
        elif "norm" in name:
            assert parameter.eq(1).all(), name
        else:
            assert abs(parameter.mean().item()) < 0.1 * parameter.std().item(), name
            found[name] = parameter.std().item()
    return found


@pytest.mark.parametrize(
    "options, inner, attention, mlp",  # of all matrices but the outputs, of attention's output, of the MLP's
    [
        ({}, 1 / 8, 1 / 32, 1 / 32),  # 1 / sqrt(64), and that / sqrt(16)
        ({"init_std": 0.05}, 0.05, 0.05, 0.05),
        ({"init_std": 0.05, "init_outputs": "depth"}, 0.05, 0.0125, 0.0125),
        ({"init_outputs": "same"}, 1 / 8, 1 / 8, 1 / 8),
        ({"init_outputs": "fan-in"}, 1 / 8, 1 / 8, 1 / 16),  # 64 and 256 inputs
    ],
)
def test_scale_of_every_kind_of_parameter(options, inner, attention, mlp):
    found = scales(**options)
    assert len(found) == 2 + 8 * 7
    for name, scale in found.items():
        wanted = {"o_proj": attention, "down_proj": mlp}.get(name.split(".")[-2], inner)
        assert scale == pytest.approx(wanted, rel=0.1), name


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_keep_the_papers_scale(preset):
    config = resolve_config(preset)
    assert (config.init_std, config.init_outputs) == (0.02, "same")


def test_the_scale_is_kept_with_the_checkpoint():
    """So that another default does not change what a checkpoint says that it was."""
    config = tiny_config()
    again = TransformerConfig(**asdict(config))
    assert (again.init_std, again.init_outputs) == (0.25, "depth")
    before_there_was_a_rule = {key: value for key, value in asdict(config).items() if key != "init_outputs"}
    assert TransformerConfig(**before_there_was_a_rule | {"init_std": 0.02}).init_outputs == "same"
