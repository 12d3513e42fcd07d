"""Parameters and FLOPs against the real network: its own parameters, and what PyTorch counts while it runs."""

import pytest
import torch
from tiny import VOCAB, tiny_config, tokens
from torch.utils.flop_counter import FlopCounterMode

from lightning_dar.model import build_transformer, resolve_config
from lightning_dar.model.flops import attention_flops, product_weights, sublayer_forward_flops
from lightning_dar.plan.memory import count_parameters, memory
from lightning_dar.plan.setting import DEVICES, Setting
from lightning_dar.plan.trace import trace_strategy
from lightning_dar.residual import ResidualConfig, available_residuals
from lightning_dar.training.optimizer import OptimizerConfig, build_optimizer

UNTIED = {"tie_embeddings": False, "qkv_bias": False}


@pytest.mark.parametrize("name", available_residuals())
def test_parameters_are_those_of_the_real_model(name):
    config, residual = tiny_config(**UNTIED), ResidualConfig(name=name)
    model = build_transformer(config, residual)
    counted = count_parameters(config, residual)
    assert counted.total == sum(parameter.numel() for parameter in model.parameters())
    assert counted.routing == sum(parameter.numel() for parameter in model.residual.parameters())
    inside = sum(parameter.numel() for parameter in model.sublayers.parameters())
    assert counted.root == counted.total - inside
    assert counted.largest_sublayer == sum(parameter.numel() for parameter in model.sublayers[1].parameters())


def test_the_papers_counts():
    counted = count_parameters(resolve_config("7.6b"), ResidualConfig(name="delta-block"))
    assert (counted.total, counted.routing) == (7_568_405_504 + 589_824, 589_824)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_the_optimizer_keeps_and_computes_is_that_of_a_real_step(optimizer):
    config, residual = tiny_config(), ResidualConfig(name="delta-sublayer")
    model, counted = build_transformer(config, residual), count_parameters(config, residual)
    real = build_optimizer(model.named_parameters(), OptimizerConfig(name=optimizer))
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape)
    with FlopCounterMode(display=False) as counter:
        real.step()
    averages = sum(value.numel() for state in real.state.values() for value in state.values() if value.ndim)
    setting = Setting(config=config, seq_len=8, batch_size=1, device=DEVICES["h100"], optimizer=optimizer)
    trace = trace_strategy(config, residual, setting.dtypes)
    assert memory(setting, counted, trace).optimizer == 4 * averages
    assert counter.get_total_flops() == (counted.orthogonalising if optimizer == "muon" else 0)


@pytest.mark.parametrize("tied", [True, False])
def test_products_are_what_pytorch_counts(tied):
    config = tiny_config(tie_embeddings=tied)
    model, ids = build_transformer(config, ResidualConfig(name="standard")), tokens(2, 8)
    with FlopCounterMode(display=False) as counter:
        loss = model(ids).logsumexp(-1).sum()
    forward = _products(counter)
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    assert forward + _products(counter) == 6 * product_weights(config) * ids.numel()
    again = sublayer_forward_flops(config, 8) - attention_flops(config, 8) / 3
    assert forward - 2 * config.hidden_size * VOCAB * ids.numel() == again * ids.numel()


def test_attention_is_half_of_all_pairs():
    """Scores and sums of one token against T/2 others on average, forward and twice that backward."""
    config = tiny_config()
    pairs = config.num_layers * config.num_heads * 100 / 2
    assert attention_flops(config, 100) == 3 * 2 * 2 * config.head_dim * pairs


def _products(counter: FlopCounterMode) -> int:
    return counter.get_flop_counts()["Global"].get(torch.ops.aten.mm, 0)
