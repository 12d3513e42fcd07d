"""A run goes on with another number of processes, another strategy, another number of workers: as if nothing were."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import lightning as L
import pytest
import torch
from command_line import only_line
from recorder import IDS, LOGITS
from runs_to_kill import CHECKPOINTS, Runs
from states import different, furthest, keys_in, state_of

from lightning_dar import load_model
from lightning_dar.residual import ResidualConfig
from lightning_dar.text import TextData
from lightning_dar.training import LanguageModel
from lightning_dar.training.parallelize import parallelize

SHARDED = '{"class_path": "lightning_dar.training.FSDP2", "init_args": {"save_distributed_checkpoint": true}}'
FILES = {name: f'{{"class_path": "lightning_dar.training.{name}"}}' for name in ("FSDP2", "FSDP")}
SAVING = {
    "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
    "init_args": {
        "monitor": "step",
        "mode": "max",
        "save_top_k": 3,
        "save_last": "link",
        "filename": "{step}",
        "enable_version_counter": False,
    },
}
RECORDING = [{"class_path": "recorder.Seen"}, {"class_path": "recorder.Logits"}]
STEPS, SAVED_AT, WINDOWS = 14, 7, 32  # a pass is 6 steps; the 9 windows it leaves out would be a batch of 8
CLOSE = 1e-4
KEYS = [
    "model.embed.weight",
    "model.sublayers.0.norm.weight",
    "model.sublayers.0.q_proj.weight",
    "model.sublayers.0.k_proj.weight",
    "model.sublayers.0.v_proj.weight",
    "model.sublayers.0.o_proj.weight",
    "model.sublayers.0.q_norm.weight",
    "model.sublayers.0.k_norm.weight",
    "model.sublayers.1.norm.weight",
    "model.sublayers.1.gate_proj.weight",
    "model.sublayers.1.up_proj.weight",
    "model.sublayers.1.down_proj.weight",
    "model.sublayers.2.norm.weight",
    "model.sublayers.2.q_proj.weight",
    "model.sublayers.2.k_proj.weight",
    "model.sublayers.2.v_proj.weight",
    "model.sublayers.2.o_proj.weight",
    "model.sublayers.2.q_norm.weight",
    "model.sublayers.2.k_norm.weight",
    "model.sublayers.3.norm.weight",
    "model.sublayers.3.gate_proj.weight",
    "model.sublayers.3.up_proj.weight",
    "model.sublayers.3.down_proj.weight",
    "model.residual.query",
    "model.residual.gain",
    "model.norm.weight",
]


def fit(runs: Runs, *args, strategy: str = "auto", processes: int = 1, accumulated: int = 1, **settings):
    """Fits with 32 windows a step, whatever shares them."""
    chosen = {
        "trainer__strategy": strategy,
        "trainer__devices": processes,
        "trainer__accumulate_grad_batches": accumulated,
        "trainer__val_check_interval": SAVED_AT * accumulated,
        "trainer__max_steps": STEPS,
        "trainer__callbacks": json.dumps([SAVING, *RECORDING]),
        "data__batch_size": WINDOWS // processes // accumulated,
        "data__seq_len": 255,
        "model__residual__name": "delta-sublayer",
        "model__optimizer__routing_lr": 0.01,
    }
    return runs.fit(*args, processes=processes, **{**chosen, **settings})


def saved(runs: Runs, step: int) -> Path:
    return runs.folder / CHECKPOINTS / f"step={step}.ckpt"


def seen(runs: Runs) -> dict[int, list[str]]:
    """The windows of every optimizer step, of all processes together, in an order of their own."""
    steps: dict[int, list[str]] = {}
    for file in (runs.folder / "seen").iterdir():
        for line in file.read_text().splitlines():
            step, ids = line.split(" ", 1)
            steps.setdefault(int(step), []).append(ids)
    return {step: sorted(windows) for step, windows in sorted(steps.items())}


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file, but for what the processes said."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("said_")]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory, shards) -> Callable[..., Runs]:
    """made(name, ...) -> the runs of that name, fitted once."""
    known: dict[str, Runs] = {}

    def make(name: str, *args, **how) -> Runs:
        if name not in known:
            known[name] = Runs(tmp_path_factory.mktemp(name), shards)
            fit(known[name], *args, **how).check()
        return known[name]

    return make


@pytest.fixture(scope="module")
def of_four(made) -> Runs:
    """Undisturbed, in four processes, each with its part of every checkpoint."""
    return made("of_four", strategy=SHARDED, processes=4)


@pytest.fixture(scope="module")
def alone(made) -> Runs:
    """Undisturbed, in one process, in files."""
    return made("alone")


@pytest.fixture(scope="module")
def alone_then_sharded(made, alone) -> Callable[[str], Runs]:
    """Gone on with by two processes that share the model."""

    def make(strategy: str) -> Runs:
        source = f"--ckpt_path={saved(alone, SAVED_AT)}"
        return made(f"sharded_{strategy}", source, strategy=FILES[strategy], processes=2, trainer__val_check_interval=2)

    return make


@pytest.fixture(scope="module")
def then_replicated(made, alone_then_sharded) -> Callable[[str], Runs]:
    """And after that by two with a copy of it each."""

    def make(strategy: str) -> Runs:
        source = f"--ckpt_path={saved(alone_then_sharded(strategy), STEPS - 2)}"
        return made(f"replicated_{strategy}", source, strategy="ddp", processes=2)

    return make


def copied(source: Runs, runs: Runs, last: int) -> Path:
    """Copies a run; the checkpoint after that of step `last` is taken away. Returns the one of that step."""
    shutil.copytree(source.folder / "runs", runs.folder / "runs", symlinks=True)
    link = runs.folder / CHECKPOINTS / "last.ckpt"
    link.unlink()
    link.symlink_to(saved(runs, last).name)
    shutil.rmtree(saved(runs, STEPS))
    return saved(runs, last)


@pytest.mark.parametrize("processes", [2, 1, pytest.param(4, marks=pytest.mark.slow)])
def test_shards_of_four_go_on_in_any_number(processes, of_four, new_runs):
    runs, accumulated = new_runs("again"), 4 // processes
    source = copied(of_four, runs, last=SAVED_AT)
    assert len(list(source.glob("*.distcp"))) == 4
    fit(runs, "--ckpt_path=last", strategy=SHARDED, processes=processes, accumulated=accumulated).check()
    assert len(list(saved(runs, STEPS).glob("*.distcp"))) == processes
    assert furthest(state_of(saved(runs, STEPS)), state_of(saved(of_four, STEPS))) < CLOSE
    assert keys_in(saved(runs, STEPS)) == KEYS
    whole, rest = seen(of_four), seen(runs)
    assert all(len(windows) == WINDOWS for windows in whole.values())
    assert rest == {step: windows for step, windows in whole.items() if step >= SAVED_AT}


def test_shards_go_on_by_their_path(of_four, new_runs):
    """In a run of its own, with all settings from the checkpoint but for what shares the windows."""
    runs, source = new_runs("by_path"), saved(of_four, SAVED_AT)
    before = contents(of_four.folder)
    runs.run("fit", f"--ckpt_path={source}", "--trainer.devices=1", "--data.batch_size=32").check()
    assert furthest(state_of(saved(runs, STEPS)), state_of(saved(of_four, STEPS))) < CLOSE
    assert contents(of_four.folder) == before


@pytest.mark.parametrize(
    "strategy",
    ["auto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp", "lightning_dar.training.FSDP"))],
)
def test_what_cannot_read_shards_says_what_can(strategy, of_four, new_runs):
    runs, source = new_runs("refused"), saved(of_four, SAVED_AT)
    before = contents(of_four.folder)
    name = "trainer.strategy.class_path" if "." in strategy else "trainer.strategy"
    done = runs.run("fit", f"--ckpt_path={source}", f"--{name}={strategy}", "--trainer.devices=1")
    assert done.statuses == [2], done.said
    line = only_line(done.said)
    assert str(source) in line
    assert "configs/strategy/fsdp2.yaml" in line
    assert contents(of_four.folder) == before
    assert contents(runs.folder) == {}


def test_one_process_is_four(alone, of_four):
    assert furthest(state_of(saved(alone, STEPS)), state_of(saved(of_four, STEPS))) < CLOSE
    assert seen(alone) == seen(of_four)


@pytest.mark.parametrize("strategy", ["FSDP2", pytest.param("FSDP", marks=pytest.mark.slow)])
def test_moments_stay_with_their_parameters_across_strategies(strategy, alone_then_sharded, then_replicated, of_four):
    """From one process into shards, and from there into copies, in files; either ends as the undisturbed run does."""
    expected = state_of(saved(of_four, STEPS))
    for runs in (alone_then_sharded(strategy), then_replicated(strategy)):
        assert furthest(state_of(saved(runs, STEPS)), expected) < CLOSE
        assert keys_in(saved(runs, STEPS)) == KEYS


@pytest.mark.slow
def test_muons_momentum_stays_with_its_matrices(made):
    """From one process into shards."""
    muon = {"model__optimizer__name": "muon"}
    alone = made("muon", **muon)
    source = f"--ckpt_path={saved(alone, SAVED_AT)}"
    sharded = made("sharded_muon", source, strategy=FILES["FSDP2"], processes=2, **muon)
    found, expected = (state_of(saved(runs, STEPS)) for runs in (sharded, alone))
    assert {"sublayers.0.q_proj.weight.momentum_buffer", "embed.weight.exp_avg"} <= expected.keys()
    assert furthest(found, expected) < CLOSE


def test_an_optimizer_of_other_parameters_is_refused(alone, new_runs):
    runs, source = new_runs("refused"), saved(alone, SAVED_AT)
    done = runs.run("fit", f"--ckpt_path={source}", f"--trainer.strategy={FILES['FSDP2']}", "--model.freeze_base=true")
    assert done.statuses == [1], done.said
    assert f"'{source}': its optimizer trained other parameters" in only_line(done.said)


@pytest.mark.parametrize("wrapper", ["none", "sublayer", "full", 0.5, "compile"])
def test_keys_show_no_wrapper(wrapper, shards, tmp_path, monkeypatch):
    """Those of processes that share the work are tested where there are such runs."""
    compiled = wrapper == "compile"
    backend = "eager" if compiled else None  # inductor takes a minute

    def wrap(model, mode, compile_backend, **options):
        assert (compile_backend is not None) == compiled
        parallelize(model, mode, backend, **options)

    monkeypatch.setattr("lightning_dar.training.module.parallelize", wrap)
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = L.Trainer(accelerator="cpu", max_steps=1, limit_val_batches=0, **dict.fromkeys(quiet, False))
    model = LanguageModel(
        residual=ResidualConfig(name="delta-sublayer"),
        activation_checkpointing="none" if compiled else wrapper,
        compile=compiled,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        intermediate_size=48,
    )
    trainer.fit(model, TextData(source=str(shards), seq_len=31))
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    assert keys_in(tmp_path / "one.ckpt") == KEYS


@pytest.mark.parametrize("name", ["delta-sublayer", pytest.param("delta-block", marks=pytest.mark.slow)])
def test_shards_in_one_file_are_the_model_that_was_trained(name, of_four, made):
    """The trained model's own logits, by the weights that it had in memory, to the last bit."""
    runs = of_four
    if name == "delta-block":
        options = {"model__residual__name": name, "model__residual__options__num_blocks": 2}
        runs = made(name, strategy=SHARDED, processes=2, trainer__max_steps=2, trainer__val_check_interval=2, **options)
    step = STEPS if runs is of_four else 2
    runs.run("convert", "--source", saved(runs, step), "--output", "single").check()
    expected = torch.load(runs.folder / LOGITS, weights_only=True)
    for checkpoint in (runs.folder / "single", saved(runs, step)):
        model = load_model(checkpoint)
        with torch.no_grad():
            assert torch.equal(model(IDS), expected)


def test_more_workers_end_with_the_very_same_bits(alone, new_runs):
    runs = new_runs("workers")
    fit(runs, f"--ckpt_path={saved(alone, SAVED_AT)}", data__num_workers=2).check()
    assert different(state_of(saved(runs, STEPS)), state_of(saved(alone, STEPS))) == []
    assert seen(runs) == {step: windows for step, windows in seen(alone).items() if step >= SAVED_AT}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"data.batch_size": 24}, "is 24 windows a step, it was 32: the 32 windows of this pass"),
        ({"trainer.accumulate_grad_batches": 3}, "3 accumulated, is 96 windows a step, it was 32"),
        ({"data.batch_size": 16, "trainer.max_steps": -1, "trainer.max_epochs": 3}, "set trainer.max_steps"),
    ],
)
def test_a_step_that_cannot_go_on_is_refused(changed, complaint, alone, new_runs):
    runs, source = new_runs("refused"), saved(alone, SAVED_AT)
    before = contents(alone.folder)
    done = runs.run("fit", f"--ckpt_path={source}", *(f"--{key}={value}" for key, value in changed.items()))
    assert done.statuses == [1], done.said
    line = only_line(done.said)
    assert "data.batch_size" in line
    assert complaint in line
    assert contents(alone.folder) == before


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [Path.unlink, cut])
def test_a_part_that_is_missing_or_cut_is_named(damage, of_four, new_runs):
    runs = new_runs("damaged")
    source = copied(of_four, runs, last=SAVED_AT)
    part = source / "__1_0.distcp"
    damage(part)
    before = contents(runs.folder)
    by_last = fit(runs, "--ckpt_path=last", strategy=SHARDED, trainer__devices=1)
    by_path = runs.run("fit", f"--ckpt_path={source}", "--trainer.devices=1")
    for done in (by_last, by_path):
        assert done.statuses == [1], done.said
        assert str(part.relative_to(runs.folder)) in only_line(done.said)
    assert contents(runs.folder) == before


@pytest.mark.parametrize("damage", [Path.unlink, cut])
def test_a_shard_of_the_data_that_is_missing_or_cut_is_named(damage, alone, new_runs, shards):
    runs, source = new_runs("damaged"), saved(alone, SAVED_AT)
    (runs.folder / "shards").unlink()
    shutil.copytree(shards, runs.folder / "shards")
    part = runs.folder / "shards/train/chunk-0-0.bin"
    damage(part)
    before, trained = contents(runs.folder), contents(alone.folder)
    done = runs.run("fit", f"--ckpt_path={source}", "--trainer.logger=false")  # which begins a run's log before that
    assert done.statuses == [1], done.said
    assert str(part.relative_to(runs.folder)) in only_line(done.said)
    assert contents(runs.folder) == before
    assert contents(alone.folder) == trained
