"""Bytes held for backward, reckoned, against those counted after a real forward."""

import gc
from functools import partial

import pytest
import torch

from benchmarks.held import held_bytes
from lightning_dar.model import build_transformer, resolve_config
from lightning_dar.plan.memory import held, reads_again
from lightning_dar.plan.setting import precision_of
from lightning_dar.plan.trace import trace_strategy
from lightning_dar.residual import ResidualConfig, available_residuals
from lightning_dar.training.parallelize import checkpoint_activations

SMALL = {"num_layers": 4, "hidden_size": 96}
DEEP = {"num_layers": 10, "hidden_size": 48}
STRATEGIES = [ResidualConfig(name=name) for name in available_residuals()]
STRATEGIES.append(ResidualConfig(name="attnres", options={"granularity": "sublayer"}))
IDS = [" ".join([strategy.name, *strategy.options.values()]) for strategy in STRATEGIES]
each_strategy = pytest.mark.parametrize("residual", STRATEGIES, ids=IDS)


@pytest.fixture(scope="module", autouse=True)
def few_objects():
    """Counting looks at every object there is; those of before this module can be left out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def agrees(residual, sizes, precision="32-true", mode="none", wrap=None, seq_len=32, within=0.03):
    """Whether the counted bytes are those reckoned, beside the copies of weights that autocast makes."""
    config = resolve_config(
        vocab_size=64, num_heads=3, num_kv_heads=1, head_dim=16, intermediate_size=2 * sizes["hidden_size"] + 8, **sizes
    )
    model, dtypes, ids = build_transformer(config, residual), precision_of(precision), torch.randint(64, (2, seq_len))
    model.to(dtypes.weights)
    if wrap is not None:
        wrap(model)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtypes.autocast):
        counted = held_bytes(lambda: model(ids, head=lambda hidden, weight: hidden), [*model.parameters(), ids])
    if dtypes.autocast:
        counted -= 2 * sum(weight.numel() for weight in model.sublayers.parameters() if weight.ndim == 2)
    trace = trace_strategy(config, residual, dtypes)
    kept = held(config, trace, dtypes, checkpointing=mode, depth_read=residual.depth_read, composite_norm=True)
    assert ids.numel() * (kept.sublayers + kept.sources) == pytest.approx(counted, rel=within)


@each_strategy
@pytest.mark.parametrize("sizes", [SMALL, DEEP], ids=["small", "deep"])
def test_every_strategy(residual, sizes):
    agrees(residual, sizes)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("name", ["standard", "delta-sublayer", "attnres"])
def test_half_precision(name, precision):
    agrees(ResidualConfig(name=name), SMALL, precision)


@pytest.mark.parametrize("backend", ["fused", "naive"])
@pytest.mark.parametrize("name", ["delta-sublayer", "attnres"])
def test_other_backends(name, backend):
    agrees(ResidualConfig(name=name, depth_read=backend), SMALL)


def test_without_norms_on_queries_and_keys():
    config = resolve_config(vocab_size=8, hidden_size=32, num_layers=2, num_heads=2, qk_norm=False)
    model, ids = build_transformer(config, ResidualConfig(name="standard")), torch.randint(8, (2, 32))
    counted = held_bytes(lambda: model(ids, head=lambda hidden, weight: hidden), [*model.parameters(), ids])
    dtypes = precision_of("32-true")
    kept = held(config, trace_strategy(config, ResidualConfig(name="standard"), dtypes), dtypes, composite_norm=True)
    assert ids.numel() * kept.sublayers == pytest.approx(counted, rel=0.03)


@each_strategy
@pytest.mark.parametrize("mode", ["sublayer", "full"])
def test_what_is_computed_again(residual, mode):
    """With more tokens: a checkpoint also keeps the state of the random numbers, 5 KB a region."""
    wrap = partial(checkpoint_activations, mode=mode)
    agrees(residual, SMALL, mode=mode, wrap=wrap, seq_len=256, within=0.1)


def test_a_share_of_the_layers_lies_between_none_and_all():
    config, dtypes = resolve_config("7.6b"), precision_of("bf16-mixed")
    trace = trace_strategy(config, ResidualConfig(name="delta-sublayer"), dtypes)
    none, half, full = (held(config, trace, dtypes, checkpointing=mode).sublayers for mode in ("none", 0.5, "full"))
    assert half == pytest.approx((none + full) / 2, rel=1e-3)
    assert [reads_again(mode) for mode in ("none", "sublayer", 0.5, "full")] == [0, 0, 0.5, 1]
