"""Every logger that has an overlay in configs/logger: where it logs, how its run goes on, what reaches it."""

import csv
import io
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import fit_args
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

CONFIGS = Path(__file__).parents[2] / "configs/logger"
LAST = "--ckpt_path=last"
FOLDER = "my runs"
CSV = "lightning.pytorch.loggers.CSVLogger"


@pytest.fixture
def fit(run, text_folder, monkeypatch):
    """fit(kind, *args) -> stdout: a run of four steps, by the overlay of that kind of logger."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")

    def fit_cli(kind: str, *args: str) -> str:
        if kind == "wandb":
            wandb = pytest.importorskip("wandb", reason="wandb is not installed")
        if kind == "mlflow":
            pytest.importorskip("mlflow", reason="mlflow is not installed")
        plain = [arg for arg in fit_args(text_folder) if ".logger." not in arg]
        status, out, err = run(*plain, "--config", CONFIGS / f"{kind}.yaml", *args)
        if kind == "wandb":
            wandb.finish()  # or the next run of this process would log into this one
        assert status == 0, err
        return out

    yield fit_cli
    if (wandb := sys.modules.get("wandb")) is not None:
        wandb.teardown()


def rows_of(out: str) -> dict[str, str]:
    return dict(re.findall(r"^  (\S.*?)  +(\S.*)$", out, re.MULTILINE))


def the_checkpoints() -> Path:
    """The one folder of checkpoints."""
    (folder,) = {path.parent for path in Path().rglob("*.ckpt")}
    return folder


def steps() -> int:
    return torch.load(the_checkpoints() / "last.ckpt", weights_only=True)["global_step"]


def check_tensorboard(out: str) -> list[bytes]:
    command = shlex.split(rows_of(out)["to look at them"])
    assert command == ["tensorboard", "--logdir", "my runs/lightning_logs"]
    events = EventAccumulator(f"{command[-1]}/version_0", size_guidance={"images": 0}).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(6))
    return [image.encoded_image_string for image in events.Images("routing/heat_map")]


def check_csv(out: str) -> list[bytes]:
    assert rows_of(out)["logs"] == "my runs/lightning_logs/version_0/metrics.csv"
    assert [step for step, _ in logged("train/loss")] == list(range(6))
    return [Path("my runs/lightning_logs/version_0/routing.png").read_bytes()]


def check_wandb(out: str) -> list[bytes]:
    (run,) = Path("my runs/lightning_dar").iterdir()
    command = shlex.split(rows_of(out)["to look at them"])
    assert command[:2] == ["wandb", "sync"]
    folders = [Path(path) for path in command[2:]]
    assert len(folders) == 2
    for folder in folders:
        assert (folder / f"run-{run.name}.wandb").is_file()
    return [path.read_bytes() for folder in folders for path in folder.glob("files/media/images/routing/heat_map_*")]


def check_mlflow(out: str) -> list[bytes]:
    from mlflow.tracking import MlflowClient

    *command, uri = shlex.split(rows_of(out)["to look at them"])
    assert command == ["mlflow", "ui", "--backend-store-uri"]
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("lightning_dar").experiment_id])
    assert (run.info.status, run.data.params["residual/name"]) == ("FINISHED", "delta-sublayer")
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "train/loss")] == list(range(6))
    images = [path.path for path in client.list_artifacts(run.info.run_id, "images")]
    heat_maps = [path for path in images if "heat_map" in path and path.endswith(".png")]
    return [Path(client.download_artifacts(run.info.run_id, path)).read_bytes() for path in heat_maps]


CHECKS = {"tensorboard": check_tensorboard, "csv": check_csv, "wandb": check_wandb, "mlflow": check_mlflow}


@pytest.mark.draws
@pytest.mark.parametrize("kind", CHECKS)
def test_a_run_goes_on_in_its_own_place_with_its_pictures(kind, fit):
    where = [f"--trainer.logger.save_dir={FOLDER}"]
    if kind == "mlflow":
        where = [f"--trainer.default_root_dir={FOLDER}", f"--trainer.logger.tracking_uri=sqlite:///{FOLDER}/mlflow.db"]
    fit(kind, *where, LAST)
    config = the_checkpoints().parent / "config.yaml"
    other = ["--data.batch_size=2", "--trainer.accumulate_grad_batches=2"]  # MLflow refuses other parameters in a run
    out = fit(kind, *where, LAST, "--trainer.max_steps=6", *other)
    assert steps() == 6
    assert config.is_file()
    images = CHECKS[kind](out)
    assert len(images) == (1 if kind == "csv" else 4)  # validated after 2, 4, 5 and 6 steps
    last = np.asarray(Image.open(the_checkpoints().parent / "routing.png"))
    assert any(np.array_equal(np.asarray(Image.open(io.BytesIO(image)))[..., :3], last) for image in images)
    validate = shlex.split(rows_of(out)["to validate it"])
    assert Path(validate[validate.index("--ckpt_path") + 1]).exists()


def logged(key: str, version: int = 0) -> list[tuple[int, float]]:
    with Path(f"my runs/lightning_logs/version_{version}/metrics.csv").open(newline="") as file:
        return [(int(row["step"]), float(row[key])) for row in csv.DictReader(file) if row[key]]


def test_steps_that_are_done_again_are_in_metrics_csv_once(fit):
    where = "--trainer.logger.save_dir=my runs"
    schedule = ["--model.optimizer.warmup_steps=0", "--model.optimizer.min_lr_ratio=1"]
    fit("csv", where, *schedule, "--trainer.max_steps=6")
    fit("csv", where, *schedule, "--trainer.max_steps=4")
    file = Path("my runs/lightning_logs/version_1/metrics.csv")
    head = file.read_text().splitlines()[0].split(",")
    later = ["9" if key in ("step", "train/loss") else "" for key in head]  # logged after the checkpoint
    with file.open("a") as rows:
        rows.write(",".join(later) + "\r\n" + ",".join(later)[:-3])  # and the kill came while the next was written
    fit("csv", where, *schedule, LAST, "--trainer.max_steps=6")
    assert not Path("my runs/lightning_logs/version_2").exists()
    keys = ["train/loss", "val/loss", next(key for key in head if key.startswith("lr-"))]
    for key in keys:
        whole = logged(key)
        assert len(whole) >= 3
        assert logged(key, version=1) == whole


class OfSomebody(TensorBoardLogger):
    """A subclass is of the kind that it is made from."""


def test_each_of_several_loggers_goes_on_in_its_own_run(fit):
    """Also where their versions differ, and one is new."""
    Path("one/lightning_logs/version_0").mkdir(parents=True)
    first = ["--trainer.logger=tests.cli.test_loggers.OfSomebody", "--trainer.logger.save_dir=one"]
    second = [f"--trainer.logger+={CSV}", "--trainer.logger.save_dir=two", "--trainer.logger.name=b"]
    fit("tensorboard", *first, *second)
    third = [f"--trainer.logger+={CSV}", "--trainer.logger.save_dir=three", "--trainer.logger.name=c"]
    out = fit("tensorboard", *first, *second, *third, LAST, "--trainer.max_steps=6")
    versions = {str(path) for path in Path().glob("*/*/version_*")}
    existing = {"one/lightning_logs/version_0", "one/lightning_logs/version_1"}
    assert versions == existing | {"two/b/version_0", "three/c/version_0"}
    assert the_checkpoints() == Path("one/lightning_logs/version_1/checkpoints")
    for path, trained in (("two/b", "012345"), ("three/c", "45")):
        with Path(path, "version_0/metrics.csv").open() as file:
            assert [row["step"] for row in csv.DictReader(file) if row["train/loss"]] == [*trained]
        assert f"{path}/version_0/metrics.csv" in out
