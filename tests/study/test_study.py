"""`python cli.py study` on a tiny matrix: killed, continued, reported; and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from command_line import only_line
from filelock import FileLock
from tiny_study import write_study

import cli
from lightning_dar.study.cells import read_result

CLI = Path(cli.__file__)
CELLS = ["standard/seed_0", "delta/seed_0", "standard/seed_1", "delta/seed_1", "diverges/seed_0"]


def start(*args: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(CLI), "study", *map(str, args)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def results(folder: Path) -> dict[str, Path]:
    cells = folder / "out" / "cells"
    return {str(path.relative_to(cells).with_suffix("")): path for path in cells.rglob("*.json")}


@pytest.fixture(scope="module")
def finished(study_folder) -> Path:
    """The matrix with a variant that cannot learn, killed when its first cell had finished, then run to the end."""
    variants = {
        "standard": {},
        "delta": {"settings": {"model.residual.name": "delta-sublayer", "model.optimizer.lr": 0.01}},
        "diverges": {"settings": {"model.optimizer.lr": 1e30, "model.optimizer.warmup_steps": 0}, "seeds": [0]},
    }
    config = write_study(study_folder, variants=variants)
    first = start("--config", config, "--jobs", "2")
    while not results(study_folder):
        assert first.poll() is None, first.communicate()
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kept = {name: path.read_bytes() for name, path in results(study_folder).items()}
    second = start("--config", config, "--jobs", "2")
    out, err = second.communicate()
    assert second.returncode == 0, err
    for name, content in kept.items():
        assert results(study_folder)[name].read_bytes() == content, "nothing finished is repeated"
        assert f"{name}: running" not in out
    return study_folder


def test_all_cells_have_ended_and_one_failed_with_its_reason(finished):
    found = {name: read_result(path) for name, path in results(finished).items()}
    assert sorted(found) == sorted(CELLS)
    failed = found.pop("diverges/seed_0")
    assert failed.status == "failed"
    assert "the loss is nan" in failed.error
    assert all(result.status == "finished" and result.measured.steps == 20 for result in found.values())


def test_a_cell_is_an_ordinary_fit_run(finished, tmp_path, monkeypatch, capsys):
    """The same config by `fit`, uninterrupted, has the same loss to the last bit, and `validate` says that loss."""
    config = yaml.safe_load((finished / "out/runs/delta/seed_1/cell.yaml").read_text())
    config["trainer"]["logger"]["init_args"]["save_dir"] = str(tmp_path)
    (tmp_path / "cell.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    cli.main(["fit", "--config", "cell.yaml"])
    (checkpoint,) = Path("fit/checkpoints").glob("*step=20*.ckpt")
    cli.main(["validate", "--ckpt_path", str(checkpoint), "--trainer.accelerator", "cpu"])
    measured = read_result(results(finished)["delta/seed_1"]).measured
    assert f"{measured.loss:.6f}"[:7] in capsys.readouterr().out
    assert sum(measured.unit_losses) / sum(measured.unit_tokens) == pytest.approx(measured.loss, rel=1e-6)
    logged = measured.curves["val/loss"].values[-1]
    assert logged == pytest.approx(measured.loss, rel=1e-6)


def test_cells_of_a_seed_share_initial_weights_and_order_of_data(finished):
    found = {name: read_result(path).measured for name, path in results(finished).items()}
    for seed in (0, 1):
        standard, delta = (found[f"{name}/seed_{seed}"].curves["train/loss"] for name in ("standard", "delta"))
        # Uniform reads add to the first forward, so losses agree only as far as tiny branches go; the batches' own.
        assert standard.values[0] == pytest.approx(delta.values[0], abs=0.05)
    first, second = (found[f"standard/seed_{seed}"].curves["train/loss"].values[0] for seed in (0, 1))
    assert first != second


def test_the_report_is_of_the_cells(finished):
    summary = json.loads((finished / "out/results.json").read_text())
    by_name = {variant["name"]: variant for variant in summary["variants"]}
    losses = {seed: read_result(results(finished)[f"delta/seed_{seed}"]).measured.loss for seed in (0, 1)}
    assert {int(seed): loss for seed, loss in by_name["delta"]["losses"].items()} == losses
    assert by_name["delta"]["against_baseline"]["seeds"] == [0, 1]
    assert "0" in by_name["diverges"]["failed"]
    table = (finished / "out/table.md").read_text()
    assert "diverges, seed 0" in table
    page = (finished / "out/report.html").read_text()
    assert "Loss against standard" in page
    assert "://" not in re.sub("<script>.*?</script>", "", page, flags=re.DOTALL), "but in what Vega may do"
    for name in ("difference", "difference_by_seed", "val_loss", "sharpness_delta", "throughput", "parameters"):
        assert (finished / f"out/{name}.png").stat().st_size > 1000


def test_a_finished_study_has_nothing_to_do(finished, capsys):
    before = {name: path.stat().st_mtime_ns for name, path in results(finished).items()}
    cli.main(["study", "--config", str(finished / "study.yaml")])
    assert ": running" not in capsys.readouterr().out
    assert {name: path.stat().st_mtime_ns for name, path in results(finished).items()} == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "model.num_layers=3"], "model.num_layers was 2, is 3"),
        (["--set", "trainer.max_steps=30"], "trainer.max_steps was 20, is 30"),
        (["--threads", "2"], "threads was 1, is 2"),
        (["--set", "model.hiden_size=3"], "hiden_size"),
        (["--variants.standard.settings", "{model.residual.name: standrd}"], "variants.standard: .*'standrd'"),
        (["--settings.trainer.max_steps", "9"], "--set KEY=VALUE"),
        (["--set", "model.num_layers"], "must be KEY=VALUE"),
        (["--jobs", "0"], "--jobs 0"),
    ],
)
def test_what_cannot_be_mixed_or_run_is_refused(finished, capsys, args, message):
    with pytest.raises(SystemExit) as stop:
        cli.main(["study", "--config", str(finished / "study.yaml"), *args])
    assert stop.value.code == 2
    assert re.search(message, only_line(capsys.readouterr().err))


def test_other_code_is_not_mixed_in(finished, capsys, monkeypatch):
    monkeypatch.setattr("lightning_dar.study.cells.code_hash", lambda: "another")
    with pytest.raises(SystemExit):
        cli.main(["study", "--config", str(finished / "study.yaml")])
    assert "code was another lightning_dar, is this one" in only_line(capsys.readouterr().err)


def test_other_data_are_not_mixed_in(finished, capsys, tmp_path):
    other = tmp_path / "text"
    other.mkdir()
    for path in (finished / "text").glob("*.txt"):
        (other / path.name).write_text(path.read_text() + " more")
    args = ["--set", f"data.source={other}", "--set", f"data.dir={tmp_path / 'shards'}"]
    with pytest.raises(SystemExit):
        cli.main(["study", "--config", str(finished / "study.yaml"), *args])
    assert "made with other settings, data or code" in only_line(capsys.readouterr().err)


def test_two_studies_in_one_folder_are_refused(finished, capsys):
    with FileLock(finished / "out/.lock"), pytest.raises(SystemExit) as stop:
        cli.main(["study", "--config", str(finished / "study.yaml")])
    assert stop.value.code == 2
    assert "another study runs in this folder" in only_line(capsys.readouterr().err)


def test_nothing_to_report(tmp_path, capsys):
    config = write_study(tmp_path, output=str(tmp_path / "empty"))
    with pytest.raises(SystemExit):
        cli.main(["study", "--config", str(config), "--report"])
    assert "no cell of the study has ended yet" in only_line(capsys.readouterr().err)
