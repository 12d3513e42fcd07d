"""What decays, what learns at which rate, and by which optimizer."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from tiny import tiny_config, tiny_model

from lightning_dar.errors import UsageError
from lightning_dar.training.optimizer import OptimizerConfig, build_optimizer

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


MUON = OptimizerConfig(name="muon", lr=0.01, routing_lr=0.03, weight_decay=0.5, betas=(0.8, 0.9), momentum=0.7)


def train(model, optimizer, steps: int, seed: int = 0) -> None:
    """Steps on random gradients."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        optimizer.step()


def test_muon_trains_the_matrices_and_adamw_the_rest(model):
    """Bit for bit what torch's own two do side by side."""
    apart = copy.deepcopy(model)
    train(model, build_optimizer(model.named_parameters(), MUON), 3)
    named = dict(apart.named_parameters())
    body = torch.optim.Muon(
        [named[name] for name in named if name in MATRICES],
        lr=0.01,
        weight_decay=0.5,
        momentum=0.7,
        adjust_lr_fn="match_rms_adamw",
    )
    other = [named[name] for name in named if name not in MATRICES | ROUTING]
    routing = {"params": [named[name] for name in named if name in ROUTING], "lr": 0.03}
    rest = torch.optim.AdamW([{"params": other, "lr": 0.01}, routing], weight_decay=0.0, betas=(0.8, 0.9), fused=True)
    draw = torch.Generator().manual_seed(0)
    for _ in range(3):
        for parameter in apart.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        body.step(), rest.step()
    torch.testing.assert_close(dict(model.named_parameters()), named, rtol=0, atol=0)


def test_muon_goes_on_from_its_saved_state(model, tmp_path):
    optimizer = build_optimizer(model.named_parameters(), MUON)
    train(model, optimizer, 2)
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "saved")
    weights, state = torch.load(tmp_path / "saved", weights_only=True)
    again = copy.deepcopy(model)
    again.load_state_dict(weights)
    resumed = build_optimizer(again.named_parameters(), replace(MUON, momentum=0.1, betas=(0.1, 0.1)))
    resumed.load_state_dict(state)
    for each, its_optimizer in ((model, optimizer), (again, resumed)):
        train(each, its_optimizer, 2, seed=1)
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)
    kept = {tuple(sorted(state)) for state in resumed.state_dict()["state"].values()}
    assert kept == {("momentum_buffer",), ("exp_avg", "exp_avg_sq", "step")}


def test_without_gradients_muon_leaves_all_as_it_is(model):
    optimizer = build_optimizer(model.named_parameters(), MUON)
    train(model, optimizer, 1)
    before = copy.deepcopy([model.state_dict(), optimizer.state_dict()["state"]])
    optimizer.zero_grad(set_to_none=True)
    optimizer.step()
    torch.testing.assert_close([model.state_dict(), optimizer.state_dict()["state"]], before, rtol=0, atol=0)


def test_muon_under_a_gradient_scaler(model):
    """As 16-mixed scales: a step whose gradients overflow is left out, another one is that without a scale."""
    plain, scaler = copy.deepcopy(model), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    train(plain, build_optimizer(plain.named_parameters(), MUON, fused=False), 1)
    optimizer, before = build_optimizer(model.named_parameters(), MUON, fused=False), copy.deepcopy(model.state_dict())
    scaler.scale(torch.zeros(()))  # which sets it up
    for overflows in (True, False):
        draw = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw) * scaler.get_scale()
        model.embed.weight.grad[0, 0] += math.inf if overflows else 0.0
        scaler.step(optimizer)
        scaler.update()
        expected = before if overflows else plain.state_dict()
        torch.testing.assert_close(model.state_dict(), expected, rtol=0, atol=0)


def test_the_rate_of_all_groups_moves_under_muon(model):
    optimizer = build_optimizer(model.named_parameters(), MUON)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    before = copy.deepcopy(model.state_dict())
    train(model, optimizer, 1)
    first = {name: (value - before[name]).norm() for name, value in model.state_dict().items()}
    for _ in range(6):
        schedule.step()
    before = copy.deepcopy(model.state_dict())
    train(model, optimizer, 1, seed=1)
    for name, value in model.state_dict().items():
        assert 0 < (value - before[name]).norm() < 0.05 * first[name], name


def test_without_matrices_to_train_muon_is_adamw(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in ROUTING)
    assert isinstance(build_optimizer(model.named_parameters(), MUON), torch.optim.AdamW)


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
        ("decay_ratio", 1.5),
        ("momentum", 1.0),
        ("name", "sgd"),
        ("schedule", "step"),
    ],
)
def test_settings_that_cannot_work(option, value):
    with pytest.raises(UsageError, match=rf"model\.optimizer\.{option}={value}: must"):
        OptimizerConfig(**{option: value})
