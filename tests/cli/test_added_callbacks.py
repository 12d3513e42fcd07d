"""Lightning's callbacks beside the default ones: the table of docs/callbacks.md, row by row."""

import re
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

import pytest
import torch
from command_line import fit_args, only_line
from lightning.pytorch import callbacks as lightnings

from lightning_dar.callbacks import RoutingSharpness

TABLE = Path(__file__).parents[2] / "docs" / "callbacks.md"
LAST = "--ckpt_path=last"
SAVED = Path("runs/test/version_0/checkpoints")


class Row(NamedTuple):
    name: str
    arguments: str
    result: str


def rows() -> list[Row]:
    cells = [line.split("|")[1:4] for line in TABLE.read_text().splitlines() if re.match(r"\| [A-Z]", line)]
    return [Row(*(cell.strip(" `") for cell in row)) for row in cells]


def added(name: str, arguments: str = "") -> list[str]:
    given = re.findall(r"\w+=(?:\{.*?: .*?\}|\S+)", arguments)
    return [
        f"--trainer.callbacks+=lightning.pytorch.callbacks.{name}",
        *(f"--trainer.callbacks.{part}" for part in given),
    ]


@pytest.fixture
def args(text_folder, monkeypatch):
    """Of a run whose pictures are not drawn: they take longer than all the rest."""
    monkeypatch.setattr(RoutingSharpness, "_draw", lambda *_: None)
    quick = [arg for arg in fit_args(text_folder) if "progress_bar" not in arg and "num_sanity" not in arg]
    quick += ["--trainer.callbacks+=callbacks.SampleText", "--trainer.callbacks.max_new_tokens=1"]
    return [*quick, "--trainer.limit_val_batches=2", "--trainer.num_sanity_val_steps=0"]


def newest() -> Path:
    return max(SAVED.glob("*step=*.ckpt"), key=lambda path: path.stat().st_mtime)


def content() -> dict:
    """What was saved last."""
    return torch.load(newest(), weights_only=True)


def state_of(name: str, saved: dict) -> dict:
    """What a callback's state says of the training, whenever it was run and wherever it lies."""
    mine = [state for key, state in saved["callbacks"].items() if key.startswith(name)]
    return {} if name in ("Timer", "ModelCheckpoint", "SpikeDetection") or not mine else mine[0]


def different(a: object, b: object, where: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [line for key in a for line in different(a[key], b[key], f"{where}/{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [
            line for number, pair in enumerate(zip(a, b, strict=True)) for line in different(*pair, f"{where}/{number}")
        ]
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b
    return [] if same else [where]


def killed_after(step: int) -> None:
    """Takes away what the run has saved later."""
    for path in Path().rglob("*.ckpt"):
        if f"step={step}." not in path.name:
            path.unlink()
    (SAVED / "finished.json").unlink(missing_ok=True)


def trained(saved: dict) -> dict:
    names = ("state_dict", "current_model_state", "averaging_state", "optimizer_states", "lr_schedulers", "TextData")
    return {name: saved[name] for name in names if name in saved}


def test_the_table_has_every_callback_of_lightning():
    assert {row.name for row in rows()} == set(lightnings.__all__)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.name} {row.arguments}")
def test_the_table(row, args, run):
    options = [*args, *added(row.name, row.arguments)]
    status, _, err = run(*options)
    if row.result == "refused":
        assert status == 2
        assert row.name in only_line(err)
        return
    assert row.result == "exact"
    assert status == 0, err
    undisturbed = content()
    killed_after(2)
    status, _, err = run(*options, LAST)
    assert status == 0, err
    again = content()
    assert again["global_step"] == undisturbed["global_step"] == 4
    assert different(trained(again), trained(undisturbed)) == []
    assert different(state_of(row.name, again), state_of(row.name, undisturbed)) == []
    status, out, err = run("validate", "--ckpt_path", newest(), "--data.val_windows=4")
    assert status == 0, err
    assert "val/loss" in out


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("StochasticWeightAveraging", "swa_lrs=0.001 swa_epoch_start=1"),
        ("Timer", "duration=00:01:00:00"),
        ("RichProgressBar", ""),
    ],
)
def test_a_default_that_no_file_can_hold_is_left_to_the_class(name, arguments, args, run):
    """A device, an enum, a theme."""
    assert run(*args, *added(name, arguments), "--trainer.max_steps=1")[0] == 0
    status, _, err = run("fit", "--config", SAVED.parent / "config.yaml")
    assert status == 0, err


def test_what_a_callback_unfreezes_is_trained_and_goes_on_exactly(args, run):
    """From inside the epoch that it is unfrozen in, and from both ends of it."""
    epochs = ["--trainer.max_steps=-1", "--trainer.max_epochs=3", "--trainer.limit_train_batches=2"]
    every = added("ModelCheckpoint", "every_n_train_steps=1 save_top_k=-1 dirpath=all filename={step}")
    assert run(*args, "--trainer.callbacks+=unfreezing.Unfreezing", *every, *epochs)[0] == 0
    Path("all").rename("kept")
    saved = {step: torch.load(f"kept/step={step}.ckpt", weights_only=True) for step in range(1, 7)}
    embeddings = [saved[step]["state_dict"]["model.embed.weight"] for step in (1, 2, 3, 6)]
    assert torch.equal(embeddings[0], embeddings[1])
    assert not torch.equal(embeddings[1], embeddings[2])
    rates = saved[4]["optimizer_states"][0]["param_groups"]
    assert rates[-1]["lr"] / rates[0]["lr"] == pytest.approx(0.01 / rates[0]["initial_lr"])
    for step in (2, 3, 4):
        status, _, err = run("fit", f"--ckpt_path=kept/step={step}.ckpt")
        assert status == 0, err
        assert different(trained(torch.load("all/step=6.ckpt", weights_only=True)), trained(saved[6])) == []
        rmtree("all")


def test_two_that_save_do_not_remove_each_others_files(args, run):
    worst = added("ModelCheckpoint", "monitor=val/loss mode=max save_top_k=1")
    steps = ["--trainer.max_steps=6", "--trainer.val_check_interval=1", "--model.optimizer.lr=0.01"]
    assert run(*args, *worst, *steps, "--model.optimizer.warmup_steps=0")[0] == 0
    names = sorted(path.name for path in SAVED.glob("*.ckpt"))
    assert names == ["epoch=0-step=5.ckpt", "epoch=0-step=6.ckpt", "last.ckpt", "val_loss-epoch=0-step=1.ckpt"]


def test_what_cannot_work_is_said_before_data_are_prepared(args, run):
    assert run(*args, *added("ModelPruning", "pruning_fn=l1_unstructured"))[0] == 2
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("Timer", "duration=5m", "Timer: `Timer(duration='5m')` is not a valid duration"),
        ("EarlyStopping", "monitor=val_loss", "EarlyStopping: Early stopping conditioned on metric `val_loss`"),
        ("EarlyStopping", "monitor=val/loss mode=least", "EarlyStopping: `mode` can be min, max, got least"),
        ("ModelCheckpoint", "monitor=val_loss", "could not find the monitored key"),
        ("GradientAccumulationScheduler", "scheduling={}", "GradientAccumulationScheduler: Empty dict"),
    ],
)
def test_what_a_callback_says_is_wrong_is_one_line(name, arguments, complaint, args, run):
    status, _, err = run(*args, *added(name, arguments))
    assert status == 2
    assert complaint in only_line(err)


def test_a_spike_ends_the_run_in_one_line(args, run):
    status, _, err = run(*args, *added("SpikeDetection", "mode=max rtol=0.0 atol=0.0"))
    assert status == 1
    assert "SpikeDetection: Training spike detected in batch" in only_line(err)


def test_an_added_callback_takes_the_place_of_the_default_one(args, run):
    fast = ["--trainer.callbacks+=callbacks.RoutingSharpness", "--trainer.callbacks.every_n_steps=3"]
    assert run(*args, *fast, *added("LearningRateMonitor", "logging_interval=step"), "--trainer.max_steps=1")[0] == 0
    settings = (SAVED.parent / "config.yaml").read_text()
    assert settings.count("callbacks.RoutingSharpness") == settings.count("every_n_steps: 3") == 1
    assert settings.count("LearningRateMonitor") == 1


def test_a_command_given_again_adds_its_callbacks_once(args, run):
    own = [*args, *added("LambdaCallback"), *added("Timer", "duration=00:01:00:00")]
    assert run(*own, "--trainer.max_steps=2")[0] == 0
    status, _, err = run(*own, "--ckpt_path", SAVED / "last.ckpt")
    assert status == 0, err
    settings = Path("runs/test/version_1/config.yaml").read_text()
    assert settings.count("LambdaCallback") == settings.count("Timer") == 1
    status, _, err = run(*own, *added("Timer", "duration=00:02:00:00"))
    assert status == 2
    assert "Found more than one stateful callback of type `Timer`" in only_line(err)


@pytest.mark.parametrize("flag", ["barebones", "fast_dev_run", "detect_anomaly"])
def test_a_flag_alone_is_enough(flag, args, run):
    status, _, err = run(*args, f"--trainer.{flag}=true")
    assert status == 0, err
    assert len(list(Path().rglob("*.ckpt"))) == (3 if flag == "detect_anomaly" else 0)
