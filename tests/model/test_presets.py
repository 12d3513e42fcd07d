"""The presets have the paper's sizes, to the unit."""

import pytest
import torch

from lightning_dar.model import build_transformer, resolve_config
from lightning_dar.residual import ResidualConfig

PARAMETERS = {
    "220m": 220_516_608,
    "533m": 533_123_072,
    "1044m": 1_043_922_688,
    "7.6b": 7_568_405_504,
    "qwen3-0.6b": 596_049_920,
}


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def build(preset, name, **options):
    with torch.device("meta"):
        return build_transformer(resolve_config(preset), ResidualConfig(name=name, options=options))


@pytest.mark.parametrize("preset", PARAMETERS)
def test_parameters(preset):
    assert count(build(preset, "standard")) == PARAMETERS[preset]


@pytest.mark.parametrize("name", ["delta-sublayer", "delta-block", "cumulative-additive", "cumulative-replacement"])
def test_routing_parameters(name):
    model = build("7.6b", name)
    assert count(model.residual) == 589_824
    assert count(model) == PARAMETERS["7.6b"] + 589_824


def test_rope_base():
    assert {preset: resolve_config(preset).rope_theta for preset in PARAMETERS} == {
        "220m": 1e4,
        "533m": 1e4,
        "1044m": 1e4,
        "7.6b": 1e4,
        "qwen3-0.6b": 1e6,
    }
