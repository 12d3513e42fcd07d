"""Which checkpoint `fit --ckpt_path last` goes on from, and where the run then lies."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import fit_args, only_line
from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger

LAST = "--ckpt_path=last"


def steps(path: str | Path) -> int:
    return torch.load(path, weights_only=True)["global_step"]


def versions() -> list[str]:
    return sorted(path.name for path in Path("runs/test").iterdir())


def test_without_a_checkpoint_it_starts_from_the_beginning(fit):
    out, err = fit(LAST)
    assert "there is no checkpoint yet, training starts from the beginning" in out + err
    assert versions() == ["version_0"]


def test_it_goes_on_in_the_newest_version_and_a_path_begins_one_of_its_own(fit, run):
    fit()
    fit()
    fit(LAST, "--trainer.max_steps=6", "--trainer.logger.init_args.default_hp_metric=false")
    assert versions() == ["version_0", "version_1"]
    assert steps("runs/test/version_0/checkpoints/last.ckpt") == 4
    assert steps("runs/test/version_1/checkpoints/last.ckpt") == 6
    settings = Path("runs/test/version_1/config.yaml").read_text()
    assert "purge_step: null" in settings
    assert "default_hp_metric: false" in settings
    assert "ckpt_path: null" in settings
    assert "version: null" in settings
    status, _, err = run("fit", "--ckpt_path=runs/test/version_1/checkpoints/last.ckpt", "--trainer.max_steps=8")
    assert status == 0, err
    assert versions() == ["version_0", "version_1", "version_2"]


def test_a_run_that_ended_before_it_saved_anything_is_passed_over(fit):
    fit()
    Path("runs/test/version_1/checkpoints").mkdir(parents=True)
    fit(LAST, "--trainer.max_steps=6")
    assert versions() == ["version_0", "version_1"]
    assert steps("runs/test/version_0/checkpoints/last.ckpt") == 6


def test_a_finished_run_has_nothing_left(fit):
    """Status 0: a job that was queued again has not failed."""
    fit()
    _, err = fit(LAST)
    assert "has done all 4 steps, nothing is left" in err
    assert versions() == ["version_0"]


EPOCHS = ["--trainer.max_steps=-1", "--trainer.max_epochs=2", "--trainer.limit_train_batches=2"]


def test_a_run_of_whole_epochs_that_is_done_says_so(fit, run, text_folder):
    epochs = [*EPOCHS, "--trainer.val_check_interval=1.0", "--trainer.check_val_every_n_epoch=1"]
    fit(*epochs)
    saved = "runs/test/version_0/checkpoints/last.ckpt"
    assert steps(saved) == 4
    _, err = fit(*epochs, LAST)
    assert "has done all 2 epochs, nothing is left" in err
    status, _, err = run("fit", f"--ckpt_path={saved}")
    assert status == 2
    assert "trainer.max_epochs=2: the checkpoint has done 2 epochs; give a larger number" in only_line(err)
    fit(*epochs, LAST, "--trainer.max_epochs=3")
    assert steps(saved) == 6
    assert versions() == ["version_0"]


def test_the_epochs_of_a_checkpoint_are_its_own(fit, run):
    """Wherever it lies; and it has done its last epoch when it is saved before that one's end."""
    fit(*EPOCHS)
    saved = "runs/test/version_0/checkpoints/last.ckpt"
    shutil.copy(saved, "moved.ckpt")
    status, _, err = run("fit", "--ckpt_path=moved.ckpt", "--trainer.max_epochs=1")
    assert status == 2
    assert "trainer.max_epochs=1: the checkpoint has done 2 epochs; give a larger number" in only_line(err)
    Path(saved).with_name("finished.json").unlink()  # as where it is killed after its last save
    _, err = fit(*EPOCHS, LAST)
    assert "has done all 2 epochs, nothing is left" in err


def test_a_run_whose_last_steps_are_not_saved_is_done(fit):
    saving = "[{class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {every_n_train_steps: 3}}]"
    fit(f"--trainer.callbacks={saving}")
    (path,) = Path("runs/test/version_0/checkpoints").glob("*.ckpt")
    assert steps(path) == 3
    _, err = fit(f"--trainer.callbacks={saving}", LAST)
    assert "has ended by itself (all 4 steps), nothing is left" in err
    fit(f"--trainer.callbacks={saving}", LAST, "--trainer.max_steps=6")
    assert max(map(steps, Path("runs/test/version_0/checkpoints").glob("*.ckpt"))) == 6


@pytest.mark.parametrize("place", ["logger", "root", "callback"])
def test_a_home_is_the_same_place_everywhere(place, fit, monkeypatch):
    """Also as `--option=~/folder`, in which shells leave it to the program."""
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    saving = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"
    told = {
        "logger": ["--trainer.logger.init_args.save_dir=~/runs"],
        "root": ["--trainer.logger=true", "--trainer.default_root_dir=~/runs"],
        "callback": [saving, "--trainer.callbacks.dirpath=~/kept", "--trainer.logger.init_args.save_dir=~/runs"],
    }[place]
    fit(*told, "--data.dir=~/shards", "--trainer.max_steps=1")
    fit(*told, "--data.dir=~/shards", "--trainer.max_steps=2", LAST)
    assert not Path("~").exists()
    assert [path.name for path in Path("home").rglob("version_*")] == ["version_0"]
    folder = next(Path("home").rglob("kept" if place == "callback" else "checkpoints"))
    assert max(map(steps, folder.glob("*.ckpt"))) == 2


class Stops(Callback):
    """Ends the run on purpose, after some steps."""

    def __init__(self, steps: int):
        self.steps = steps

    def on_train_batch_end(self, trainer, *_):
        trainer.should_stop = trainer.should_stop or trainer.global_step == self.steps


def test_a_run_that_any_callback_has_ended_is_done(fit, run):
    """Also where the checkpoints lie in a folder that one of two ModelCheckpoints is told, and from their path."""

    def stopping(steps: int) -> list[str]:
        added = [{"class_path": f"{__name__}.Stops", "init_args": {"steps": steps}}]
        added += [{"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"dirpath": "kept"}}]
        return [f"--trainer.callbacks+={json.dumps(callback)}" for callback in added]

    fit(*stopping(3))
    (path,) = Path("kept").glob("*.ckpt")
    assert steps(path) == 3
    _, err = fit(*stopping(3), LAST)
    assert "has ended by itself (3 steps, when a callback stopped it), nothing is left" in err
    status, _, err = run("fit", f"--ckpt_path={path}")
    assert status == 2
    assert "its run has ended by itself (3 steps, when a callback stopped it); give another limit" in only_line(err)
    fit(*stopping(5), LAST)
    assert max(map(steps, Path("kept").glob("*.ckpt"))) == 4


def test_a_run_that_early_stopping_has_ended_is_done_until_it_is_more_patient(fit):
    def stopping(patience: int) -> list[str]:
        settings = {"monitor": "val/loss", "mode": "max", "patience": str(patience)}  # which falls, so it stops
        flags = [f"--trainer.callbacks.{key}={value}" for key, value in settings.items()]
        return ["--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping", *flags, "--trainer.max_steps=20"]

    fit(*stopping(1))
    saved = "runs/test/version_0/checkpoints/last.ckpt"
    stopped = steps(saved)
    assert stopped < 20
    _, err = fit(*stopping(1), LAST)
    assert "has ended by itself (EarlyStopping), nothing is left" in err
    assert steps(saved) == stopped
    fit(*stopping(3), LAST)
    assert stopped < steps(saved) < 20
    assert versions() == ["version_0"]


def test_callbacks_added_by_the_command_are_added_once(fit):
    added = "--trainer.callbacks+=lightning.pytorch.callbacks.LambdaCallback"
    fit(added)
    fit(added, LAST, "--trainer.max_steps=6")
    content = torch.load("runs/test/version_0/checkpoints/last.ckpt", weights_only=True)
    names = [entry["class_path"] for entry in content["lightning_dar_run"]["settings"]["trainer"]["callbacks"]]
    assert len([name for name in names if name.endswith("LambdaCallback")]) == 1


@pytest.mark.parametrize("logger", ["true", "false"])
def test_lightnings_default_logger_and_none_at_all(logger, run, text_folder):
    args = [arg for arg in fit_args(text_folder) if ".logger." not in arg]
    for most in (4, 6):
        status, _, err = run(*args, f"--trainer.logger={logger}", LAST, f"--trainer.max_steps={most}")
        assert status == 0, err
    (folder,) = Path().rglob("checkpoints")
    assert str(folder) == ("lightning_logs/version_0/checkpoints" if logger == "true" else "checkpoints")
    assert steps(folder / "last.ckpt") == 6


class Silent(Logger):
    """Of a kind that nothing is known of."""

    name, version = "silent", "1"

    def log_metrics(self, metrics, step=None):
        pass

    def log_hyperparams(self, params):
        pass


def test_a_logger_of_an_unknown_kind_needs_a_folder_for_the_checkpoints(run, text_folder):
    args = [arg for arg in fit_args(text_folder) if ".logger." not in arg]
    own = ["--trainer.logger=tests.cli.test_last.Silent"]
    status, _, err = run(*args, *own, LAST)
    assert status == 2
    assert "Silent does not tell where its runs are" in only_line(err)
    saving = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"
    told = [saving, "--trainer.callbacks.dirpath=kept", "--trainer.callbacks.every_n_train_steps=2"]
    for most in (4, 6):
        status, _, err = run(*args, *own, *told, LAST, f"--trainer.max_steps={most}")
        assert status == 0, err
    assert max(steps(path) for path in Path("kept").glob("*.ckpt")) == 6


def test_a_run_of_another_kind_of_logger_is_not_written_over(run, text_folder):
    args = [
        *(arg for arg in fit_args(text_folder) if ".logger." not in arg),
        "--trainer.logger=tests.cli.test_last.Silent",
    ]
    status, _, err = run(*args)
    assert status == 0, err
    before = Path("silent/1/config.yaml").read_bytes()
    status, _, err = run(*args, "--trainer.max_steps=2")
    assert status == 2
    assert "silent/1/config.yaml: of another run" in only_line(err)
    assert Path("silent/1/config.yaml").read_bytes() == before


def test_behind_a_url_it_does_not_look(run, text_folder):
    """Or a job that is queued again would begin anew every time."""
    status, _, err = run(*fit_args(text_folder), LAST, "--trainer.logger.init_args.save_dir=s3://bucket/runs")
    assert status == 2
    assert "s3://bucket/runs is not looked into; give the checkpoint's path" in only_line(err)


def test_weights_alone_are_not_gone_on_with(fit, run, text_folder):
    saving = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"
    fit(saving, "--trainer.callbacks.dirpath=kept", "--trainer.callbacks.save_weights_only=true")
    (path,) = Path("kept").glob("*.ckpt")
    status, _, err = run("fit", "--ckpt_path", path, "--trainer.max_steps=6")
    assert status == 2
    assert "no training to go on with is in it" in only_line(err)
    _, err = fit(saving, "--trainer.callbacks.dirpath=kept", LAST)
    assert f"runs/test/version_0/checkpoints/{path.name} has done all 4 steps" in err
    shutil.rmtree("runs")
    _, err = fit(saving, "--trainer.callbacks.dirpath=kept", LAST)
    assert "there is no checkpoint yet" in err


@pytest.mark.parametrize("missing", ["TextData", "loops"])
def test_a_checkpoint_without_position_in_the_data_is_no_training(missing, fit, run):
    """As of a run on data of another class."""
    fit("--trainer.max_steps=1")
    content = torch.load("runs/test/version_0/checkpoints/last.ckpt", weights_only=True)
    torch.save({**content, missing: {}}, "without.ckpt")
    status, _, err = run("fit", "--ckpt_path=without.ckpt", "--trainer.max_steps=2")
    assert status == 2
    assert "without.ckpt: no training to go on with is in it; start from its weights" in only_line(err)


def test_other_settings_than_the_checkpoints_are_refused(fit, run, text_folder):
    fit()
    status, _, err = run(*fit_args(text_folder), LAST, "--model.residual.name=standard", "--trainer.max_steps=6")
    assert status == 2
    assert "the checkpoint has delta" in only_line(err)
    status, _, err = run(*fit_args(text_folder), LAST, "--model.optimizer.lr=1e-6", "--trainer.max_steps=6")
    assert status == 2
    assert "model.optimizer.lr=1e-06: the optimizer in the checkpoint has 0.0006" in only_line(err)
    status, _, err = run(*fit_args(text_folder), LAST, "--model.optimizer.name=muon", "--trainer.max_steps=6")
    assert status == 2
    assert "model.optimizer.name=muon: the optimizer in the checkpoint has adamw" in only_line(err)


def test_only_a_damaged_one(fit, run, text_folder):
    fit("--trainer.max_steps=2")
    (path,) = (path for path in Path("runs/test/version_0/checkpoints").glob("*.ckpt") if not path.is_symlink())
    path.write_bytes(path.read_bytes()[:-1000])
    status, _, err = run(*fit_args(text_folder), LAST)
    assert status == 1
    assert path.name in only_line(err)
    shutil.rmtree("runs/test/version_0")
    fit(LAST)
