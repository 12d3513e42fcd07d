"""Runs that average their weights: what lies in their checkpoints, who takes which, and how they go on."""

from pathlib import Path

import pytest
import torch
from command_line import fit_args, only_line
from safetensors.torch import load_file

import lightning_dar
from lightning_dar.callbacks import RoutingSharpness

SAVED = Path("runs/test/version_0/checkpoints")
LIGHTNINGS = "--trainer.callbacks+=lightning.pytorch.callbacks."
EMA = [f"{LIGHTNINGS}EMAWeightAveraging", "--trainer.callbacks.decay=0.5"]
EVERY_STEP = [
    f"{LIGHTNINGS}ModelCheckpoint",
    "--trainer.callbacks.every_n_train_steps=1",
    "--trainer.callbacks.save_top_k=-1",
    "--trainer.callbacks.save_weights_only=true",
    "--trainer.callbacks.dirpath=all",
    "--trainer.callbacks.filename={step}",
]
LAST = "--ckpt_path=last"
EPOCHS = [
    "--trainer.max_steps=-1",
    "--trainer.max_epochs=3",
    "--trainer.limit_train_batches=2",
    "--trainer.val_check_interval=1.0",
    "--trainer.check_val_every_n_epoch=1",
]
SWA = [
    f"{LIGHTNINGS}StochasticWeightAveraging",
    "--trainer.callbacks.swa_lrs=0.01",
    "--trainer.callbacks.swa_epoch_start=2",
]


@pytest.fixture
def fit(run, text_folder, monkeypatch):
    """fit(*args) in that folder below the working directory; it must succeed. Returns the folder."""
    monkeypatch.setattr(RoutingSharpness, "_draw", lambda *_: None)
    small = ["--trainer.num_sanity_val_steps=0", "--trainer.limit_val_batches=2", "--model.optimizer.lr=0.01"]
    samples = ["--trainer.callbacks+=callbacks.SampleText", "--trainer.callbacks.max_new_tokens=1"]
    args = [arg for arg in fit_args(text_folder) if "data.dir" not in arg]
    shards = f"--data.dir={Path.cwd() / 'shards'}"

    def fit_cli(folder: str, *more: str) -> Path:
        Path(folder).mkdir(exist_ok=True)
        with monkeypatch.context() as here:
            here.chdir(folder)
            status, _, err = run(*args, *small, *samples, shards, *more)
        assert status == 0, err
        return Path(folder)

    return fit_cli


def weights(path: Path, key: str = "state_dict") -> dict[str, torch.Tensor]:
    return {name.removeprefix("model."): value for name, value in torch.load(path, weights_only=True)[key].items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    torch.testing.assert_close([a[name] for name in a], [b[name] for name in a], rtol=1e-5, atol=1e-6)


def mean_by_halves(steps: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    average = steps[0]
    for step in steps[1:]:
        average = {name: 0.5 * average[name] + 0.5 * step[name] for name in step}
    return average


def test_who_takes_which_weights_and_that_it_is_said(fit, run):
    plain, averaging = fit("plain", *EVERY_STEP), fit("averaging", *EMA)
    current = weights(plain / SAVED / "last.ckpt")
    average = mean_by_halves([weights(plain / f"all/step={step}.ckpt") for step in (1, 2, 3, 4)])
    path = averaging / SAVED / "last.ckpt"
    assert same(weights(path, "current_model_state"), current), "averaging does not disturb training"

    with pytest.warns(
        UserWarning, match=r"averaged and current weights: taken are the averaged ones \(weights=current"
    ):
        close(dict(lightning_dar.load_model(path).named_parameters()), average)
    assert same(lightning_dar.load_model(path, weights="current").state_dict(), current)

    said = "holds averaged and current weights: taken are the"
    losses = {}
    for which, options in (("averaged", []), ("current", ["--weights", "current"])):
        status, out, err = run("validate", "--ckpt_path", path, *options)
        assert status == 0, err
        assert f"{said} {which} ones" in err
        losses[which] = next(line.split()[3] for line in out.splitlines() if "val/loss" in line)
        status, out, err = run("convert", "--source", path, "--output", which, *options)
        assert status == 0, err
        assert f"{said} {which} ones" in out
        _, _, err = run("generate", "--ckpt_path", path, "--prompt=ta", "--max_new_tokens=1", "--device=cpu", *options)
        assert f"{said} {which} ones" in err
    assert same(load_file("current/model.safetensors"), current)
    close(load_file("averaged/model.safetensors"), average)
    _, out, err = run("validate", "--ckpt_path", plain / SAVED / "last.ckpt")
    assert said not in err
    assert losses["current"] == next(line.split()[3] for line in out.splitlines() if "val/loss" in line)
    assert losses["averaged"] != losses["current"]

    status, _, err = run("generate", "--ckpt_path", plain / SAVED / "last.ckpt", "--prompt=ta", "--weights=averaged")
    assert status == 2
    assert "holds no averaged weights" in only_line(err)
    fit("from", f"--model.init_from={path.absolute()}", "--model.init_weights=current", "--trainer.max_steps=1", *EMA)
    status, _, err = run("inspect", "--ckpt_path", path, "--output=report", "--device=cpu", "--max_tokens=512")
    assert status == 0, err
    assert f"{said} averaged ones" in err


def test_without_the_callback_training_goes_on_with_the_current_weights(fit):
    undisturbed = fit("plain")
    averaging = fit("averaging", *EMA)
    for path in [*averaging.rglob("*step=4.ckpt"), averaging / SAVED / "last.ckpt"]:
        path.unlink()
    fit("averaging", LAST)
    assert same(weights(averaging / SAVED / "last.ckpt"), weights(undisturbed / SAVED / "last.ckpt"))


def test_weights_alone_come_in_both_sets(fit):
    averaging = fit("averaging", *EMA, *EVERY_STEP)
    alone, whole = averaging / "all/step=4.ckpt", averaging / SAVED / "last.ckpt"
    for key in ("state_dict", "current_model_state"):
        assert same(weights(alone, key), weights(whole, key))


def test_what_is_saved_when_training_ends_goes_on_exactly(fit):
    """Lightning has put the averaged weights in the place of the others by then."""
    plain = fit("plain", "--trainer.limit_val_batches=0")
    averaging = fit("averaging", *EMA, "--trainer.limit_val_batches=0")
    assert same(weights(averaging / SAVED / "last.ckpt", "current_model_state"), weights(plain / SAVED / "last.ckpt"))


def test_before_the_first_average_there_is_one_set(fit, run):
    folder = fit("averaging", *EMA, "--trainer.callbacks.update_starting_at_step=100")
    path = folder / SAVED / "last.ckpt"
    assert same(lightning_dar.load_model(path).state_dict(), weights(path, "current_model_state"))
    status, _, err = run("validate", "--ckpt_path", path)
    assert status == 0, err
    assert "averaged" not in err


def test_stochastic_weight_averaging_averages_what_its_epochs_start_from(fit):
    folder = fit("swa", *SWA, *EVERY_STEP, *EPOCHS)
    starts = [weights(folder / f"all/step={step}.ckpt") for step in (2, 4)]
    average = {name: (starts[0][name] + starts[1][name]) / 2 for name in starts[0]}
    path = folder / SAVED / "last.ckpt"
    with pytest.warns(UserWarning, match="taken are the averaged ones"):
        close(dict(lightning_dar.load_model(path).named_parameters()), average)
    assert same(lightning_dar.load_model(path, weights="current").state_dict(), weights(folder / "all/step=6.ckpt"))


def test_stochastic_weight_averaging_goes_on_inside_an_epoch(fit, run):
    fifth = [
        f"{LIGHTNINGS}ModelCheckpoint",
        "--trainer.callbacks.every_n_train_steps=5",
        "--trainer.callbacks.dirpath=kept",
        "--trainer.callbacks.filename={step}",
    ]
    settings = [*SWA, *fifth, *EPOCHS, "--trainer.max_epochs=4"]
    whole = fit("whole", *settings)
    saved = (whole / "kept/step=5.ckpt").absolute()
    resumed = fit("resumed", *settings, f"--ckpt_path={saved}")
    ends = [torch.load(folder / SAVED / "last.ckpt", weights_only=True) for folder in (whole, resumed)]
    assert same(*(end["state_dict"] for end in ends))
    assert same(*(end["callbacks"]["StochasticWeightAveraging"]["average_model_state"] for end in ends))
    assert ends[0]["lr_schedulers"] == ends[1]["lr_schedulers"]
    status, _, err = run("fit", "--ckpt_path", saved, "--trainer.callbacks=[]")
    assert status == 2
    assert "in the middle of StochasticWeightAveraging" in only_line(err)


@pytest.mark.parametrize("averaging", [EMA, SWA], ids=["EMA", "SWA"])
def test_sharded_models_are_refused(averaging, run, text_folder):
    sharded = "--trainer.strategy.class_path=lightning_dar.training.FSDP2"
    status, _, err = run(*fit_args(text_folder), *averaging, sharded)
    assert status == 2
    assert "does not work with a sharded model" in only_line(err)
