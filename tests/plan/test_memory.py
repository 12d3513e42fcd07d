"""Memory by part against sums done by hand, the setting that fits, and what communication and time come to."""

import inspect
from dataclasses import replace

import pytest
from tiny import tiny_config

from lightning_dar.errors import UsageError
from lightning_dar.model import resolve_config
from lightning_dar.plan.duration import HIGH, LOW, communication, step
from lightning_dar.plan.memory import CHUNK_LOGITS, count_parameters, memory, usable
from lightning_dar.plan.plan import nearest_fit, plan
from lightning_dar.plan.setting import DEVICES, Setting, device_of
from lightning_dar.plan.trace import trace_strategy
from lightning_dar.residual import ResidualConfig
from lightning_dar.training.loss import chunked_cross_entropy

H100 = DEVICES["h100"]
TINY = Setting(config=tiny_config(), seq_len=8, batch_size=4, device=H100)
LARGE = Setting(
    config=resolve_config("7.6b"),
    seq_len=2048,
    batch_size=8,
    precision="bf16-mixed",
    strategy="fsdp2",
    gpus=8,
    device=H100,
)


def parts(setting: Setting, name: str = "standard"):
    residual = ResidualConfig(name=name)
    return count_parameters(setting.config, residual), trace_strategy(setting.config, residual, setting.dtypes)


def test_one_gpu_in_full_precision():
    counted, trace = parts(TINY)
    needed = memory(TINY, counted, trace)
    assert (needed.weights, needed.gradients, needed.optimizer) == (
        4 * counted.total,
        4 * counted.total,
        8 * counted.total,
    )
    assert needed.sources == 0
    logits = 4 * 8 * 31 * (4 + 4 + 4) + 4 * 8 * 16 * 4  # logits and their softmax with room to copy; hidden states
    assert needed.logits == logits


def test_the_chunk_of_logits_is_that_of_the_loss():
    assert inspect.signature(chunked_cross_entropy).parameters["chunk_logits"].default == CHUNK_LOGITS


def test_replicas_also_hold_what_they_send():
    counted, trace = parts(TINY)
    assert memory(replace(TINY, strategy="ddp", gpus=2), counted, trace).gradients == 2 * 4 * counted.total


def test_autocast_holds_every_matrix_twice():
    counted, trace = parts(TINY)
    extra = memory(replace(TINY, precision="bf16-mixed"), counted, trace).weights - memory(TINY, counted, trace).weights
    assert extra == 2 * (counted.linear + 31 * 16)


def test_shards_shrink_and_what_is_gathered_does_not():
    counted, trace = parts(LARGE)
    eight, many = (memory(replace(LARGE, gpus=gpus), counted, trace) for gpus in (8, 64))
    assert eight.optimizer == pytest.approx(8 * many.optimizer, rel=1e-6)
    assert eight.weights - many.weights == pytest.approx(4 * counted.total * (1 / 8 - 1 / 64), rel=1e-6)
    assert many.activations == eight.activations


def test_sharded_gradients_are_sent_every_micro_batch():
    counted, _ = parts(LARGE)
    sent = communication(LARGE, counted).bytes
    inside = counted.total - counted.root
    assert sent == pytest.approx(7 / 8 * (inside * (2 + 2 + 4) + counted.root * (4 + 4)))
    assert communication(replace(LARGE, accumulate=3), counted).bytes == pytest.approx(3 * sent)
    replicas = replace(LARGE, strategy="ddp", accumulate=3)
    assert communication(replicas, counted).bytes == pytest.approx(2 * 7 / 8 * 4 * counted.total)
    assert communication(replicas, counted).seconds == pytest.approx(7 * counted.total / 450e9)


def test_muon_keeps_one_average_of_what_it_trains_and_gathers_its_updates():
    counted, trace = parts(LARGE, "delta-block")
    muon = replace(LARGE, optimizer="muon")
    saved = memory(LARGE, counted, trace).optimizer - memory(muon, counted, trace).optimizer
    matrices = counted.linear
    assert saved == pytest.approx(4 * matrices / 8)
    sent = communication(muon, counted).bytes - communication(LARGE, counted).bytes
    assert sent == pytest.approx(7 / 8 * 4 * matrices)
    traffic = (7 * (counted.total - matrices) + 5 * matrices) * 4 / 8 / (0.5 * 3.35e12)
    iteration = counted.orthogonalising / (0.35 * 989e12)
    assert step(muon, counted, trace, LOW).optimizer == pytest.approx(traffic + iteration)


def test_products_take_their_share_of_the_peak():
    counted, trace = parts(LARGE)
    slow, fast = (step(LARGE, counted, trace, assumed) for assumed in (LOW, HIGH))
    flops = 8 * 2048 * (6 * (7_568_405_504) + 6 * 36 * 32 * 128 * 2048)
    assert slow.products == pytest.approx(flops / (0.35 * 989e12), rel=1e-3)
    assert (slow.depth_reads, fast.communication) == (0, 0)
    again = step(replace(LARGE, checkpointing="full"), counted, trace, LOW).products
    assert 1.25 < again / slow.products < 4 / 3, "the forward of all but the head, once more"


@pytest.mark.parametrize("name", ["standard", "delta-sublayer", "attnres"])
def test_the_nearest_setting_fits_by_the_same_arithmetic(name):
    counted, trace = parts(LARGE, name)
    assert memory(LARGE, counted, trace).total > usable(LARGE)
    found = nearest_fit(LARGE, counted, trace)
    assert memory(found, counted, trace).total <= usable(found)
    assert (found.gpus, found.device, found.strategy) == (8, H100, "fsdp2")
    assert found.tokens_per_step == LARGE.tokens_per_step
    described = plan(LARGE, ResidualConfig(name=name))["nearest"]
    assert described["memory"] == memory(found, counted, trace).total
    assert (described["batch_size"], described["checkpointing"]) == (found.batch_size, found.checkpointing)


def test_more_gpus_only_where_nothing_else_helps():
    small = replace(LARGE, gpus=1, strategy="single", batch_size=1)
    counted, trace = parts(small)
    found = nearest_fit(small, counted, trace)
    assert (found.strategy, found.device) == ("fsdp2", H100)
    fewer = replace(found, gpus=found.gpus // 2, checkpointing="full")
    assert memory(fewer, counted, trace).total > usable(fewer)


def test_a_larger_kind_of_gpu_comes_last():
    config = resolve_config("7.6b", hidden_size=16_384, num_layers=80, intermediate_size=65_536)
    huge = replace(LARGE, config=config, batch_size=1, gpus=4096)
    found = nearest_fit(huge, *parts(huge, "delta-sublayer"))
    assert found is None or found.device.memory > H100.memory


@pytest.mark.parametrize(
    ("cuda_name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA H100 NVL", None),
        ("Tesla T4", None),
    ],
)
def test_gpus_by_the_name_they_give_themselves(cuda_name, known):
    found = device_of(cuda_name)
    assert (found and found.name) == known


def test_impossible_settings_are_refused():
    for changes, says in (
        ({"batch_size": 0}, "data.batch_size=0"),
        ({"checkpointing": "all"}, "model.activation_checkpointing=all"),
        ({"checkpointing": 1.5}, "model.activation_checkpointing=1.5"),
        ({"strategy": "deepspeed"}, "trainer.strategy=deepspeed"),
        ({"precision": "64-true"}, "trainer.precision=64-true"),
        ({"gpus": 2}, "2 GPUs need ddp"),
        ({"optimizer": "muon", "strategy": "fsdp"}, "model.optimizer.name=muon: FSDP"),
    ):
        with pytest.raises(UsageError, match=says):
            replace(TINY, **changes)
