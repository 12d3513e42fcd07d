"""Every shipped config parses, builds (large models on the meta device) and is what its first line says."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from jsonargparse import Namespace
from lightning.pytorch.strategies import DDPStrategy

from lightning_dar.fit.lightning_cli import RoutedCLI, RoutedTrainer
from lightning_dar.model import build_transformer
from lightning_dar.model.attention import Attention
from lightning_dar.model.mlp import MLP
from lightning_dar.training import FSDP, FSDP2

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent.name != "study")
PAPER_PARAMETERS = {"220m": 220_516_608, "533m": 533_123_072, "7.6b": 7_568_405_504, "qwen3-0.6b": 596_049_920}
ROOT_PARAMETERS = {
    "delta_1b": 1_043_922_688,
    "delta_8b": PAPER_PARAMETERS["7.6b"],
    "delta_70b": 80 * (8192 * (2 * 64 * 128 + 2 * 8 * 128 + 3 * 28_672 + 2) + 2 * 128) + 8192 + 2 * 151_936 * 8192,
}


ALPHA = "tests/reference/delta_sublayer_alpha_gate"


class Parsed(RoutedCLI):
    """Builds model, data and callbacks of a command line, and stops before the trainer."""

    def before_instantiate_classes(self) -> None:
        pass

    def instantiate_trainer(self, **kwargs):
        return Namespace(**self._get(self.config_init, "trainer"))

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def command(config: Path) -> list[str]:
    first = config.read_text().splitlines()[0]
    assert first.startswith("# python cli.py fit --config ")
    return shlex.split(first.removeprefix("# python cli.py "))


@pytest.mark.parametrize("config", CONFIGS, ids=[str(path.relative_to(ROOT)) for path in CONFIGS])
def test_config(config, monkeypatch):
    monkeypatch.chdir(ROOT)
    args = command(config)
    if config.stem.startswith("finetune"):  # the user lays the checkpoint there; here a tiny one takes its place
        args += ["--model.init_from", ALPHA]
    if config.parent.name == "logger":  # tests/cli/test_loggers.py makes them; MLflow's makes a database here
        args += ["--trainer.logger", "false"]
    assert str(config.relative_to(ROOT)) in args, "the first line runs this very config"
    parsed = Parsed(args)
    assert parsed.trainer.max_steps > 0
    assert parsed.datamodule.hparams.seq_len in (128, 256, 2048, 4096)
    config_on_meta = replace(parsed.model.config, vocab_size=parsed.model.config.vocab_size or 4096)
    with torch.device("meta"):
        model = build_transformer(config_on_meta, parsed.model.residual)
    body = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("residual."))
    if config.parent.name == "size":
        assert body == PAPER_PARAMETERS[config.stem]
    if config.stem in ROOT_PARAMETERS:
        assert body == ROOT_PARAMETERS[config.stem]
    if config.parent.name == "residual":
        assert config.stem.startswith(parsed.model.residual.name)


def test_fine_tuning_takes_the_papers_rates():
    args = [*command(ROOT / "configs/finetune_delta_block.yaml"), "--model.init_from", str(ROOT / ALPHA)]
    parsed = Parsed(args)
    assert (parsed.model.optimizer.lr, parsed.model.optimizer.routing_lr) == (5e-5, 5e-3)
    assert parsed.model.residual.options["gate"] == "alpha"


def test_the_paper_recipe(monkeypatch):
    monkeypatch.chdir(ROOT)
    parsed = Parsed(command(ROOT / "configs/delta_1b.yaml"))
    trainer, data, optimizer = parsed.trainer, parsed.datamodule.hparams, parsed.model.optimizer
    assert trainer.devices * data.batch_size * trainer.accumulate_grad_batches == 32
    assert (trainer.max_steps, data.seq_len, trainer.gradient_clip_val) == (10_000, 2048, 1.0)
    assert (optimizer.lr, optimizer.warmup_steps, optimizer.betas) == (6e-4, 1000, (0.9, 0.95))
    assert (optimizer.weight_decay, optimizer.min_lr_ratio) == (0.1, 0.1)


def test_size_overlays_say_only_what_differs(monkeypatch):
    monkeypatch.chdir(ROOT)
    base = vars(Parsed(command(ROOT / "configs/delta_1b.yaml")).model.optimizer)
    for config in (ROOT / "configs/size").glob("*.yaml"):
        content = yaml.safe_load(config.read_text())
        assert set(content) == {"model"}
        assert set(content["model"]) <= {"preset", "optimizer"}
        assert content["model"]["preset"] == config.stem
        for key, value in content["model"].get("optimizer", {}).items():
            assert value != base[key], f"{config}: {key} is the base's already"


@pytest.mark.parametrize("name", ["ddp", "fsdp", "fsdp2"])
def test_strategy_overlays(name, monkeypatch):
    """The trainer that they make, but for the GPUs, and what it would wrap."""
    monkeypatch.chdir(ROOT)
    asked = Parsed(command(ROOT / f"configs/strategy/{name}.yaml")).trainer.strategy
    strategy = RoutedTrainer(accelerator="cpu", devices=2, strategy=asked, logger=False).strategy
    kind, checkpointing = {"ddp": (DDPStrategy, "none"), "fsdp": (FSDP, "none"), "fsdp2": (FSDP2, "full")}[name]
    assert type(strategy) is kind
    if name == "fsdp":
        assert strategy.kwargs["auto_wrap_policy"]._module_classes == {Attention, MLP}
        assert strategy.kwargs["use_orig_params"], "optimizer groups need the parameters themselves"
        mixed = strategy.mixed_precision_config
        assert (mixed.param_dtype, mixed.reduce_dtype, mixed.buffer_dtype) == (None, None, None)
    if name == "fsdp2":
        assert strategy._save_distributed_checkpoint
    assert Parsed(command(ROOT / f"configs/strategy/{name}.yaml")).model.activation_checkpointing == checkpointing
