"""Starting from a checkpoint: model.init_from, freeze_base, and validation of what was converted."""

import re
from pathlib import Path

import pytest
import torch
from command_line import SIZES, fit_args, only_line
from foreign import save
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_dar import load_model
from lightning_dar.checkpoint.load import open_checkpoint, read_checkpoint
from lightning_dar.text.tokenizer import BYTES_JSON

CHECKPOINT = Path("runs/test/version_0/checkpoints/last.ckpt")


@pytest.fixture
def pretrained(tmp_path):
    save("llama", tmp_path / "pretrained", vocab_size=257)
    (tmp_path / "pretrained/tokenizer.json").write_text(BYTES_JSON)
    return "pretrained"


@pytest.fixture
def routed(pretrained, run):
    args = ("--model.residual.name=delta-block", "--model.residual.options.num_blocks=3")
    status, _, err = run("convert", "--source", pretrained, "--output", "routed", *args)
    assert status == 0, err
    return "routed"


@pytest.fixture
def tune(run, text_folder):
    """tune(init_from, *args): four steps of fit, with no word on architecture, strategy or tokenizer."""

    def fit_from(init_from, *args):
        dropped = ("--data.tokenizer=", *(size.split("=")[0] for size in SIZES))
        options = [arg for arg in fit_args(text_folder) if not arg.startswith(dropped)]
        return run(*options, "--model.init_from", init_from, *args)

    return fit_from


def scalars(version, tag):
    events = EventAccumulator(f"runs/test/version_{version}").Reload()
    return [event.value for event in events.Scalars(tag)]


def test_the_first_steps_loss_is_the_sources(pretrained, routed, tune):
    for path in (pretrained, routed):
        status, _, err = tune(path, "--model.optimizer.routing_lr=0.05", "--model.optimizer.warmup_steps=0")
        assert status == 0, err
    assert scalars(0, "train/loss")[0] == scalars(1, "train/loss")[0]
    assert scalars(0, "val/loss")[0] == scalars(1, "val/loss")[0]
    assert scalars(0, "train/loss")[-1] != scalars(1, "train/loss")[-1]
    tuned = load_model(CHECKPOINT.parents[2] / "version_1/checkpoints/last.ckpt")
    assert tuned.residual.gate.count_nonzero() == 5


def test_a_tuned_checkpoint_still_knows_where_it_comes_from(routed, tune, run):
    assert tune(routed)[0] == 0
    checkpoint = open_checkpoint(CHECKPOINT)
    assert (checkpoint.residual.name, checkpoint.residual.options["gate"]) == ("delta-block", "alpha")
    assert checkpoint.end_ids == (5,)
    assert checkpoint.description["tokenizer"] == BYTES_JSON
    status, _, err = run("fit", "--ckpt_path", CHECKPOINT, "--trainer.max_steps=6")
    assert status == 0, err
    assert open_checkpoint(CHECKPOINT.parents[2] / "version_1/checkpoints/last.ckpt").end_ids == (5,)


def test_freeze_base_trains_the_routing_alone(routed, tune, run):
    before = load_model(routed).state_dict()
    status, _, err = tune(routed, "--model.freeze_base=true", "--model.optimizer.routing_lr=0.05")
    assert status == 0, err
    after = load_model(CHECKPOINT).state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "residual.gate" in changed
    assert all(name.startswith("residual.") for name in changed)
    groups = read_checkpoint(CHECKPOINT)["optimizer_states"][0]["param_groups"]
    assert [group["name"] for group in groups] == ["routing"]
    status, _, err = run("fit", "--ckpt_path", CHECKPOINT, "--trainer.max_steps=6")
    assert status == 0, err
    again = load_model(CHECKPOINT.parents[2] / "version_1/checkpoints/last.ckpt").state_dict()
    assert torch.equal(again["embed.weight"], before["embed.weight"]), "resumed runs stay frozen"
    assert not torch.equal(again["residual.gate"], after["residual.gate"])


def test_what_cannot_be_combined_is_refused(pretrained, routed, tune):
    for path, option, says in (
        (pretrained, "--model.freeze_base=true", "strategy 'standard' has no parameters to train"),
        (routed, "--model.residual.name=attnres", "has delta-block with"),
        (routed, "--model.hidden_size=64", "model.hidden_size=64: the checkpoint to start from has 32; leave it unset"),
        ("nowhere", "--model.freeze_base=true", "'nowhere' does not exist"),
    ):
        status, _, err = tune(path, option)
        assert status == 2
        assert says in only_line(err)


def test_data_by_another_tokenizer_is_refused(routed, tune):
    status, _, err = tune(routed, "--data.tokenizer=bpe:257", "--data.dir=other")
    assert status == 1
    assert "data.tokenizer: the data were prepared with another tokenizer than the checkpoint's" in only_line(err)


def test_validate_on_text_of_ones_own(routed, pretrained, run, tmp_path):
    (tmp_path / "domain").mkdir()
    for number in range(40):
        (tmp_path / f"domain/{number}.txt").write_text(f"text number {number} of another domain. " * 20)
    results = []
    for path in (pretrained, routed):
        args = ("--data.source", "domain", "--data.seq_len=32", "--data.val_fraction=0.2")
        status, out, err = run("validate", "--ckpt_path", path, *args)
        assert status == 0, err
        results.append([re.search(rf"val/{name}\W+([\d.]+)", out)[1] for name in ("perplexity", "bits_per_byte")])
    assert results[0] == results[1]
    perplexity, bits = map(float, results[0])
    assert bits == pytest.approx(torch.tensor(perplexity).log2().item(), rel=0.05), "bytes are the tokens, ends aside"


def test_validate_several_domains_gives_a_row_each(routed, run, tmp_path):
    rows = {}
    for name in ("law", "code"):
        (tmp_path / name).mkdir()
        for number in range(40):
            (tmp_path / name / f"{number}.txt").write_text(f"{name} number {number} of another kind. " * 20)
        args = ("--ckpt_path", routed, "--data.seq_len=32", "--data.val_fraction=0.2")
        status, out, err = run("validate", *args, "--data.source", name)
        assert status == 0, err
        rows[name] = float(re.search(r"val/perplexity\W+([\d.]+)", out)[1])
    status, out, err = run("validate", *args, "--domains", "{law: law, code: code}")
    assert status == 0, err
    assert re.search(r"^domain +loss +perplexity +bits per byte$", out, re.MULTILINE)
    for name, perplexity in rows.items():
        found = re.search(rf"^{name} +[\d.]+ +([\d.]+) +[\d.]+$", out, re.MULTILINE)
        assert float(found[1]) == pytest.approx(perplexity, rel=1e-5)
