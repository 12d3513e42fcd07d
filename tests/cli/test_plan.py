"""plan through the command line: the configs of fit, side by side, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import only_line

from lightning_dar.residual import available_residuals

ROOT = Path(__file__).parents[2]
LARGE = ["--config", ROOT / "configs/delta_8b.yaml"]


def planned(run, *args) -> dict:
    status, out, err = run("plan", *args, "--json")
    assert status == 0, err
    return json.loads(out)


@pytest.mark.parametrize("config", sorted(ROOT.glob("configs/delta_*.yaml")), ids=lambda path: path.stem)
def test_every_strategy_side_by_side(run, config):
    report = planned(run, "--config", config, "--gpus", "64")
    names = [row["strategy"] for row in report["strategies"]]
    assert names[0] == "standard"
    assert set(names) == set(available_residuals())
    assert report["left_out"] == {}
    parameters = {row["strategy"]: row["parameters"] for row in report["strategies"]}
    assert parameters["delta-block"]["total"] == parameters["standard"]["total"] + parameters["delta-block"]["routing"]


@pytest.mark.parametrize(("config", "gpus"), [("delta_1b", 8), ("delta_8b", 64), ("delta_70b", 256)])
def test_shipped_configs_fit_on_the_gpus_that_they_name(run, config, gpus):
    report = planned(run, "--config", ROOT / f"configs/{config}.yaml", "--gpus", gpus, "--gpu", "h100")
    (own,) = [row for row in report["strategies"] if row["strategy"] == "delta-block"]
    assert own["fits"]


def test_modes_and_communication_whatever_the_setting(run):
    """Both are shown for all that could be set; the setting's own agree with its memory."""
    plain, full = (planned(run, *LARGE, f"--model.activation_checkpointing={mode}") for mode in ("none", "full"))
    for before, after in zip(plain["strategies"], full["strategies"], strict=True):
        assert before["held"] == after["held"]
        assert before["communication"] == after["communication"]
        for mode, row in (("none", before), ("full", after)):
            assert row["held"][mode] == row["memory"]["activations"] + row["memory"]["sources"]
        assert before["held"]["none"] > before["held"]["sublayer"] > before["held"]["full"]


def test_overlays_and_options_as_for_fit(run):
    overlay = ["--config", ROOT / "configs/size/220m.yaml", "--config", ROOT / "configs/residual/delta-block.yaml"]
    options = ["--model.residual.options.num_blocks=6", "--data.batch_size=1", "--trainer.accumulate_grad_batches=4"]
    report = planned(run, *LARGE, *overlay, *options, "--gpu", "a100")
    assert report["strategies"][0]["parameters"]["total"] == 220_516_608
    assert report["strategies"][-1]["options"] == {"num_blocks": 6}
    setting = report["setting"]
    assert (setting["batch_size"], setting["accumulate"], setting["gpus"]) == (1, 4, 8)
    assert (setting["strategy"], setting["precision"]) == ("fsdp2", "bf16-mixed")
    assert setting["device"]["name"] == "a100"


def test_what_is_printed_are_the_numbers_of_the_report(run):
    report = planned(run, *LARGE, "--tokens", "1e12")
    status, out, err = run("plan", *LARGE, "--tokens", "1e12")
    assert status == 0, err
    for row in report["strategies"]:
        lines = [line for line in out.splitlines() if line.startswith(row["strategy"] + "  ")]
        assert f"{row['parameters']['total']:,}" in lines[0] or row["options"]
        days = [seconds / 86_400 for seconds in row["speed"]["seconds"]]
        assert f"{days[0]:,.1f} days to {days[1]:,.1f} days" in out


def test_a_run_that_does_not_fit_is_told_what_does(run):
    crowded = [*LARGE, "--data.batch_size=16"]
    status, out, err = run("plan", *crowded)
    assert status == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("delta-sublayer: does not fit")]
    proposal = line.partition("fits with ")[2].rpartition(": ")[0].split()
    row = next(row for row in planned(run, *crowded, *proposal)["strategies"] if row["strategy"] == "delta-sublayer")
    assert row["fits"]


def test_vocabulary_of_the_tokenizer(run):
    report = planned(run, "--config", ROOT / "configs/quickstart.yaml")
    assert report["setting"]["config"]["vocab_size"] == 4096


def test_the_optimizer_of_the_config(run):
    Path("muon.yaml").write_text("model: {optimizer: {name: muon, lr: 0.01}, max_skipped_steps: 3}\n")
    plain, muon = (planned(run, *LARGE, *more) for more in ([], ["--config", "muon.yaml"]))
    kept = [report["strategies"][0]["memory"]["optimizer"] for report in (plain, muon)]
    assert muon["setting"]["optimizer"] == "muon"
    assert 0.5 < kept[1] / kept[0] < 0.6


def test_options_of_others_that_cannot_work_are_left_out(run):
    sizes = ["--model.hidden_size=32", "--model.num_layers=2", "--model.num_heads=2", "--data.tokenizer=bytes"]
    report = planned(run, *sizes)
    assert set(report["left_out"]) == {"attnres", "delta-block"}
    status, _, err = run("plan", *sizes, "--model.residual.name=delta-block")
    assert status == 2
    assert "num_blocks=4" in only_line(err)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--gpu=h1000"], "--gpu h1000: unknown; known: "),
        (["--gpus=0"], "--gpus=0: must be at least 1"),
        (["--tokens=-1"], "--tokens -1.0: must be finite and positive"),
        (["--config=no_such.yaml"], "--config no_such.yaml: cannot be read"),
        (["--config=list.yaml"], "--config list.yaml, line 1: a list"),
        (["--config=typo.yaml"], "typo.yaml, line 1: model.hiden_size: fit has no such option"),
        (["--trainer.strategy=deepspeed"], "trainer.strategy=deepspeed: plan knows"),
        (["--model.residual.name=delta-bloc"], "unknown strategy 'delta-bloc'"),
        (["--model.freeze_base=true"], "model.freeze_base"),
        (["--data.tokenizer=nowhere.json", "--model.vocab_size=null"], "data.tokenizer=nowhere.json is not there"),
    ],
)
def test_refused_in_one_line(run, args, says):
    Path("list.yaml").write_text("- 1\n")
    Path("typo.yaml").write_text("model: {hiden_size: 8}\n")
    sizes = ["--model.hidden_size=32", "--model.num_layers=4", "--model.num_heads=2"]
    status, _, err = run("plan", *sizes, *args)
    assert status == 2
    assert says in only_line(err)


def test_needs_no_lightning():
    code = "import sys, cli; cli.main(sys.argv[1:]); sys.exit('lightning' in sys.modules or 'altair' in sys.modules)"
    args = [sys.executable, "-c", code, "plan", "--config", "configs/quickstart.yaml"]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
