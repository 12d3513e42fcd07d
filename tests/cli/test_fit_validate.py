"""fit, validate and resume through the command line."""

import json
import re
from pathlib import Path

import pytest
import torch
from command_line import fit_args, only_line
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_dar import load_model
from lightning_dar.checkpoint.load import read_checkpoint

CHECKPOINT = Path("runs/test/version_0/checkpoints/last.ckpt")


def scalars(version: int, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(f"runs/test/version_{version}").Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


@pytest.mark.draws
def test_fit_ends_with_a_summary_whose_paths_exist(fit):
    out, _ = fit()
    rows = dict(re.findall(r"^  (\S.*?)  +(\S.*)$", out, re.MULTILINE))
    assert rows["steps"] == "4"
    assert "before training" in rows["validation loss"]
    for row in ("validation perplexity", "bits per byte", "sharpness, mean", "tokens per second", "sample"):
        assert row in rows
    for row in ("checkpoint", "routing heat map", "logs"):
        assert Path(rows[row]).exists()
    assert rows["to validate it"] == f"python cli.py validate --ckpt_path {CHECKPOINT}"
    assert rows["to look at them"] == "tensorboard --logdir runs/test"


def test_the_progress_bar_shows_loss_speed_and_sharpness(fit):
    out, err = fit(
        "--trainer.enable_progress_bar=true",
        "--trainer.callbacks+=callbacks.RoutingSharpness",
        "--trainer.callbacks.every_n_steps=1",
    )
    for shown in ("train/loss=", "throughput/tokens_per_second=", "sharpness="):
        assert shown in out + err


@pytest.mark.parametrize("flag", ["logger", "enable_checkpointing"])
def test_callbacks_give_way_to_the_trainers_flags(flag, run, text_folder):
    args = [arg for arg in fit_args(text_folder) if ".logger." not in arg]
    status, out, err = run(*args, f"--trainer.{flag}=false")
    assert status == 0, err
    assert "validation perplexity" in out


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_other_precisions_train_with_clipping(precision, fit):
    fit(f"--trainer.precision={precision}", "--trainer.gradient_clip_val=1.0")
    losses = [value for _, value in scalars(0, "val/loss")]
    assert losses[-1] < losses[0]


def test_a_diverged_run_ends_and_leaves_no_spoilt_checkpoint(run, text_folder):
    status, _, err = run(*fit_args(text_folder), "--model.optimizer.lr=1e30")
    assert status == 1
    assert "step 2: the loss is nan" in only_line(err)
    assert not CHECKPOINT.exists()


@pytest.mark.draws
def test_standard_reports_that_nothing_is_routed(fit):
    out, _ = fit("--model.residual.name=standard")
    assert "none: nothing is routed" in out
    assert not Path("runs/test/version_0/routing.png").exists()


def test_validate_needs_no_flags_and_repeats_the_perplexity(fit, run):
    out, _ = fit()
    trained = float(re.search(r"validation perplexity +(\S+)", out)[1])
    exact = scalars(0, "val/perplexity")[-1][1]
    status, out, err = run("validate", "--ckpt_path", CHECKPOINT)
    assert status == 0, err
    again = float(re.search(r"val/perplexity\W+([\d.]+)", out)[1])
    assert abs(again - exact) <= 1e-6 * exact
    assert abs(again - trained) <= 1e-5 * trained  # the summary prints six digits
    assert not Path("config.yaml").exists()
    assert not Path("lightning_logs").exists()


def test_validate_other_text_uses_the_checkpoints_own_tokenizer(fit, run, tmp_path):
    fit("--data.tokenizer=bpe:300", "--data.dir=bpe_shards")
    other = tmp_path / "other"
    other.mkdir()
    for number in range(40):
        (other / f"{number}.txt").write_text(f"another text, number {number}, about other things. " * 20)
    status, out, err = run("validate", "--ckpt_path", CHECKPOINT, "--data.source", other)
    assert status == 0, err
    assert "val/bits_per_byte" in out
    status, _, err = run("validate", "--ckpt_path", CHECKPOINT, "--data.source", other, "--data.tokenizer", "bytes")
    assert status == 1
    assert "another tokenizer than the checkpoint's" in err


def test_load_model_gives_the_trained_weights_and_logits(fit):
    fit("--model.residual.name=attnres", "--model.residual.options.num_blocks=2")
    model = load_model(CHECKPOINT)
    weights = read_checkpoint(CHECKPOINT)["state_dict"]
    assert set(weights) == {f"model.{name}" for name in model.state_dict()}
    assert all(torch.equal(tensor, weights[f"model.{name}"]) for name, tensor in model.state_dict().items())
    assert model(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, 257)


def test_the_same_seed_gives_the_same_losses_bit_for_bit(fit):
    fit()
    fit()
    first, second = (scalars(version, "train/loss") for version in (0, 1))
    assert [step for step, _ in first] == [0, 1, 2, 3]
    assert first == second
    fit("--seed_everything=7")
    assert scalars(2, "train/loss") != first


def test_a_finished_run_resumes_from_its_checkpoint_alone(fit, run):
    constant_rate = ("--model.optimizer.min_lr_ratio=1", "--model.optimizer.warmup_steps=0")
    fit(*constant_rate, "--trainer.max_steps=8")
    whole = scalars(0, "train/loss")
    fit(*constant_rate)
    half = "runs/test/version_1/checkpoints/last.ckpt"
    status, _, err = run("fit", "--ckpt_path", half, "--trainer.max_steps=8")
    assert status == 0, err
    assert scalars(1, "train/loss") + scalars(2, "train/loss") == whole


def test_prepare_writes_the_shards_that_fit_then_uses(run, text_folder, fit):
    status, out, err = run("prepare", "--data.source", text_folder, "--data.tokenizer=bytes", "--data.dir=shards")
    assert status == 0, err
    manifest = json.loads(Path("shards/manifest.json").read_text())
    assert f"shards: {manifest['train']['tokens']:,} train tokens" in out
    before = {path: path.stat().st_mtime_ns for path in Path("shards").rglob("*") if path.is_file()}
    fit()
    assert before == {path: path.stat().st_mtime_ns for path in Path("shards").rglob("*") if path.is_file()}


def test_config_overlays_and_print_config(run, tmp_path):
    (tmp_path / "base.yaml").write_text("model: {hidden_size: 64, num_layers: 3, num_heads: 2}\n")
    (tmp_path / "over.yaml").write_text("model: {num_layers: 5, residual: {name: delta-block}}\n")
    status, out, _ = run("fit", "--config", "base.yaml", "--config", "over.yaml", "--print_config")
    assert status == 0
    assert "hidden_size: 64" in out
    assert "num_layers: 5" in out
    assert "name: delta-block" in out


def test_every_option_of_ours_has_help_text(run):
    _, out, _ = run("fit", "--help")
    options = re.findall(r"^  (--(?:model|data|plugins)[.\w]*) (?!CONFIG).*?\n?((?:  +[^-\s].*\n)+)", out, re.MULTILINE)
    assert {"--model.num_kv_heads", "--model.optimizer.decay", "--data.tokenizer"} <= {name for name, _ in options}
    assert len(options) > 35
    assert not [name for name, text in options if text.split()[0].startswith("(")]
