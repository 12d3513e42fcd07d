"""What decays, what learns at which rate, and how the rate moves."""

import math

import pytest
import torch
from tiny import tiny_config, tiny_model

from lightning_dar.errors import UsageError
from lightning_dar.training.optimizer import OptimizerConfig, build_optimizer, warmup_cosine

MATRICES = {
    f"sublayers.{s}.{projection}_proj.weight"
    for s in range(8)
    for projection in (("q", "k", "v", "o") if s % 2 == 0 else ("gate", "up", "down"))
}
ROUTING = {"residual.query", "residual.gain", "residual.gate", "residual.null_source"}


@pytest.fixture
def model():
    config = tiny_config(qkv_bias=True, tie_embeddings=False)
    return tiny_model("delta-sublayer", config, gate="alpha", null_source=True)


def groups(model, **options):
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(**options))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {g["name"]: (g, {names[id(p)] for p in g["params"]}) for g in optimizer.param_groups}


def test_every_parameter_is_in_the_group_it_belongs_to(model):
    found = {name: members for name, (_, members) in groups(model).items()}
    everything = {name for name, _ in model.named_parameters()}
    assert found == {"body": MATRICES, "routing": ROUTING, "other": everything - MATRICES - ROUTING}
    assert {"embed.weight", "head.weight", "norm.weight", "sublayers.0.q_proj.bias"} <= found["other"]


@pytest.mark.parametrize("decay", ["body", "all"])
def test_what_decays(model, decay):
    """With zero gradients a step is the decay alone: p becomes p (1 - lr x weight_decay)."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
            parameter.grad = torch.zeros_like(parameter)
    config = OptimizerConfig(lr=0.1, routing_lr=0.2, weight_decay=0.5, decay=decay)
    build_optimizer(model.named_parameters(), config).step()
    for name, parameter in model.named_parameters():
        lr = 0.2 if name in ROUTING else 0.1
        decays = decay == "all" or name in MATRICES
        torch.testing.assert_close(parameter, torch.full_like(parameter, 1 - lr * 0.5 * decays), msg=name)


def test_rates(model):
    rates = {name: group["lr"] for name, (group, _) in groups(model, lr=1e-3, routing_lr=5e-2).items()}
    assert rates == {"body": 1e-3, "other": 1e-3, "routing": 5e-2}
    assert groups(model, lr=1e-3)["routing"][0]["lr"] == 1e-3
    assert groups(model, lr=1e-3, routing_lr=0.0)["routing"][0]["lr"] == 0.0


def test_adam_coefficients(model):
    group, _ = groups(model, betas=(0.8, 0.7), eps=1e-5)["body"]
    assert (group["betas"], group["eps"]) == ((0.8, 0.7), 1e-5)


def test_frozen_parameters_and_empty_groups_are_left_out(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("residual."))
    assert {name: members for name, (_, members) in groups(model).items()} == {"routing": ROUTING}
    assert "routing" not in groups(tiny_model("standard"))


def schedule(total_steps=1000, **options):
    return warmup_cosine(OptimizerConfig(**{"warmup_steps": 100, "min_lr_ratio": 0.1, **options}), total_steps)


@pytest.mark.parametrize(
    "step, factor",
    [
        (0, 0.01),  # the first step already learns
        (49, 0.5),
        (99, 1.0),
        (100, 1.0),
        (325, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2),  # a quarter of the cosine
        (550, 0.55),
        (1000, 0.1),
        (5000, 0.1),
    ],
)
def test_warmup_then_cosine_to_the_floor(step, factor):
    assert schedule()(step) == pytest.approx(factor, abs=1e-12)


def test_schedule_without_warmup_starts_at_the_peak():
    assert schedule(warmup_steps=0)(0) == 1.0


@pytest.mark.parametrize("total_steps", [0, 50, 100])
def test_run_no_longer_than_its_warmup(total_steps):
    factor = schedule(total_steps)
    assert [factor(step) for step in (0, 49, 99, 100)] == [0.01, 0.5, 1.0, 1.0]


def test_floor_of_zero():
    assert schedule(min_lr_ratio=0.0)(1000) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(
    "option, value",
    [
        ("min_lr_ratio", -0.1),
        ("min_lr_ratio", 1.5),
        ("lr", -1e-3),
        ("lr", math.inf),
        ("lr", math.nan),
        ("routing_lr", -1.0),
        ("warmup_steps", -1),
        ("weight_decay", -0.1),
    ],
)
def test_settings_that_cannot_work(option, value):
    with pytest.raises(UsageError, match=rf"model\.optimizer\.{option}={value}: must"):
        OptimizerConfig(**{option: value})
