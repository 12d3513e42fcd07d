"""A kind of MLP brought in by one file: initialised, grouped, trained, described, planned and found again."""

import gc
import sys
from dataclasses import asdict
from pathlib import Path

import lightning as L
import pytest
import torch
from hf_models import exported, opened
from tiny import gradients, tiny_config, tokens, variant
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.held import held_bytes
from lightning_dar import available_mlps, load_model, register_mlp
from lightning_dar.checkpoint.description import describe
from lightning_dar.checkpoint.hf_config import family_of
from lightning_dar.errors import DataError, UsageError
from lightning_dar.model import MLPConfig, TransformerConfig, build_transformer, mlp
from lightning_dar.model.flops import product_weights
from lightning_dar.plan.memory import count_parameters, held
from lightning_dar.plan.setting import precision_of
from lightning_dar.plan.trace import trace_strategy
from lightning_dar.residual import ResidualConfig, available_residuals
from lightning_dar.training import LanguageModel
from lightning_dar.training.optimizer import OptimizerConfig, build_optimizer
from lightning_dar.training.parallelize import parallelize

EXPERTS = MLPConfig(kind="experts", options={"num_experts": 2})
KINDS = [MLPConfig(), EXPERTS]
RESIDUALS = [*map(variant, available_residuals()), variant("delta-sublayer", gate="alpha", null_source=True)]
each_kind = pytest.mark.parametrize("mlp", KINDS, ids=lambda mlp: mlp.kind)


@pytest.fixture(autouse=True, scope="module")
def experts():
    """The kind is known in this module alone."""
    known, folder = dict(mlp._KINDS), str(Path(__file__).parent)
    sys.path.insert(0, folder)
    import experts

    yield experts
    sys.path.remove(folder)
    mlp._KINDS.clear()
    mlp._KINDS.update(known)
    del sys.modules["experts"]


def model_of(mlp: MLPConfig, residual: ResidualConfig | None = None, **sizes):
    config = tiny_config(mlp=mlp, qkv_bias=True, tie_embeddings=False, **sizes)
    return build_transformer(config, residual or ResidualConfig(name="delta-sublayer"))


@each_kind
@pytest.mark.parametrize("name, options", RESIDUALS)
def test_every_parameter_is_initialised(mlp, name, options):
    model = model_of(mlp, ResidualConfig(name=name, options=options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    model.init_weights()
    assert [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()] == []


@each_kind
def test_the_part_by_part_initialisation_of_transformers_reaches_every_parameter(mlp):
    model = model_of(mlp, ResidualConfig(name="standard"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)):
            model.init_module(name, module)
    assert [name for name, parameter in model.named_parameters() if not parameter.isfinite().all()] == []


@each_kind
@pytest.mark.parametrize("name, options", RESIDUALS)
def test_every_parameter_is_in_one_group_of_the_optimizer(mlp, name, options):
    model = model_of(mlp, ResidualConfig(name=name, options=options))
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(), decays=model.decays)
    members = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(members) == sorted(id(parameter) for parameter in model.parameters())


def test_a_kind_says_what_decays():
    model = model_of(EXPERTS)
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(), decays=model.decays)
    (body,) = (group["params"] for group in optimizer.param_groups if group["name"] == "body")
    names = {name for name, parameter in model.named_parameters() if any(parameter is other for other in body)}
    assert {"sublayers.1.up", "sublayers.1.down_proj.weight", "sublayers.0.q_proj.weight"} <= names
    assert "sublayers.1.router.weight" not in names


@each_kind
def test_every_parameter_is_in_the_description_and_in_the_plan(mlp):
    model, residual = model_of(mlp), ResidualConfig(name="delta-sublayer")
    said = describe(model.config, model.residual, residual)["architecture"]
    again = build_transformer(TransformerConfig(**said), residual)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    assert {name: parameter.shape for name, parameter in again.named_parameters()} == shapes
    counted = count_parameters(model.config, residual)
    assert counted.total == sum(shape.numel() for shape in shapes.values())
    assert counted.root + sum(p.numel() for p in model.sublayers.parameters()) == counted.total


@each_kind
def test_the_plan_has_the_products_that_pytorch_counts(mlp):
    model, ids = model_of(mlp), tokens(2, 8)
    with FlopCounterMode(display=False) as counter:
        for sublayer in model.sublayers[1::2]:
            sublayer(torch.randn(2, 8, 16), None)
    head_and_attention = product_weights(model.config) - 4 * type(model.sublayers[1]).product_weights(model.config)
    assert head_and_attention == 16 * 31 + 4 * 2 * 16 * 4 * (4 + 2)
    assert counter.get_total_flops() == 2 * ids.numel() * (product_weights(model.config) - head_and_attention)


@each_kind
def test_the_plan_has_the_bytes_that_autograd_holds(mlp):
    gc.collect()
    config = tiny_config(mlp=mlp, hidden_size=64, intermediate_size=96)
    model, dtypes, ids = (
        build_transformer(config, ResidualConfig(name="standard")),
        precision_of("32-true"),
        tokens(2, 32),
    )
    counted = held_bytes(lambda: model(ids, head=lambda hidden, weight: hidden), [*model.parameters(), ids])
    trace = trace_strategy(config, ResidualConfig(name="standard"), dtypes)
    assert ids.numel() * held(config, trace, dtypes, composite_norm=True).sublayers == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize("mode", ["none", "sublayer", "full", 0.5])
def test_the_auxiliary_loss_is_that_of_the_sublayers_and_is_trained(mode):
    model, ids = model_of(EXPERTS), tokens()
    read = []
    hooks = [mlp.norm.register_forward_hook(lambda _, __, y: read.append(y)) for mlp in model.sublayers[1::2]]
    parallelize(model, mode)
    logits, auxiliary = model(ids, with_auxiliary=True)
    for hook in hooks:
        hook.remove()
    assert list(auxiliary) == [1, 3, 5, 7]
    wanted = []
    for layer, x in zip(model.sublayers[1::2], read[:4], strict=True):
        wanted.append(0.1 * 2 * layer.router(x).softmax(-1).mean((0, 1)).square().sum())
    torch.testing.assert_close(list(auxiliary.values()), wanted)
    grads = gradients(model, torch.stack(list(auxiliary.values())).sum())
    assert grads["sublayers.1.router.weight"].abs().max() > 0 and grads["embed.weight"].abs().max() > 0
    assert model(ids).equal(logits)


class _Batches(L.LightningDataModule):
    vocab_size = 31

    def train_dataloader(self):
        ids = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
        return DataLoader([{"input_ids": row[:-1], "targets": row[1:]} for row in ids], batch_size=2)


def test_a_run_adds_it_to_the_loss_logs_it_and_the_checkpoint_opens(tmp_path, monkeypatch):
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 24, "mlp": EXPERTS}
    module = LanguageModel(ResidualConfig(name="delta-block", options={"num_blocks": 2}), **sizes)
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    trainer = L.Trainer(max_steps=1, accelerator="cpu", default_root_dir=tmp_path, **quiet)
    stepped = []
    real = LanguageModel.training_step
    monkeypatch.setattr(LanguageModel, "training_step", lambda *args: stepped.append(real(*args)) or stepped[-1])
    trainer.fit(module, datamodule=_Batches())
    logged = trainer.logged_metrics
    assert logged["train/auxiliary_loss"] > 0.1
    torch.testing.assert_close(stepped[0].detach(), logged["train/loss"] + logged["train/auxiliary_loss"])

    trainer.save_checkpoint(tmp_path / "run.ckpt")
    model = load_model(tmp_path / "run.ckpt")
    assert model.config.mlp == MLPConfig(kind="experts", options={"num_experts": 2, "weight": 0.1})
    ids = tokens()
    torch.testing.assert_close(model(ids), module.model(ids))
    monkeypatch.delitem(mlp._KINDS, "experts")
    with pytest.raises(UsageError, match="needs MLP kind 'experts' of plugin 'experts': add --plugins experts"):
        load_model(tmp_path / "run.ckpt")


def test_a_kind_travels_in_an_exported_folder_and_not_in_a_plain_one(tmp_path):
    model = exported(tmp_path / "hf", "delta-block", tiny_config(mlp=EXPERTS), num_blocks=2)
    other, ids = opened(tmp_path / "hf"), tokens()
    torch.testing.assert_close(other(ids).logits, model(ids))
    with pytest.raises(DataError, match=r"model\.mlp\.kind=experts: a plain folder of .* has SwiGLU alone"):
        family_of(model.config)


def test_a_config_without_mlp_is_the_swiglu_of_old():
    old = asdict(tiny_config())
    assert old.pop("mlp") == {"kind": "swiglu", "options": {}}
    model = build_transformer(TransformerConfig(**old), ResidualConfig(name="standard"))
    x, mlp = torch.randn(2, 3, 16), model.sublayers[1]
    normed = F.rms_norm(x, (16,), mlp.norm.weight, 1e-6)
    wanted = (F.silu(normed @ mlp.gate_proj.weight.T) * (normed @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
    torch.testing.assert_close(mlp(x, None), wanted)


@pytest.mark.parametrize(
    "mlp, message",
    [
        (MLPConfig(kind="swiglue"), r"model\.mlp\.kind: unknown kind 'swiglue'; known: swiglu, experts\. Did you mean"),
        (MLPConfig(options={"num_experts": 2}), r"model\.mlp\.options: MLP kind 'swiglu' has no option 'num_experts'"),
        (MLPConfig(kind="experts", options={"num_experts": "two"}), r"model\.mlp\.options\.num_experts: .* takes int"),
    ],
)
def test_what_cannot_work_is_said_before_any_data_is_read(mlp, message):
    with pytest.raises(UsageError, match=message):
        LanguageModel(hidden_size=16, num_layers=2, num_heads=2, mlp=mlp)


def test_a_name_is_given_once():
    with pytest.raises(UsageError, match="MLP kind 'swiglu' of .* is already registered by lightning_dar.model.mlp"):

        @register_mlp("swiglu")
        class Other(type(model_of(EXPERTS).sublayers[1])):
            pass

    assert available_mlps() == ["swiglu", "experts"]
    with pytest.raises(UsageError, match="not a subclass"):
        register_mlp("linear")(torch.nn.Linear)
