"""Checkpoints of earlier releases go on as they did."""

import shutil

import torch

from lightning_dar.checkpoint.description import FORMAT
from lightning_dar.checkpoint.load import open_checkpoint
from lightning_dar.run.state import STATE_KEY


def write_format_1(source, path):
    """A checkpoint as releases wrote it whose state of the run had four keys."""
    content = torch.load(source, weights_only=True)
    state = content.pop(STATE_KEY)
    content["lightning_dar"]["format"] = 1
    content |= {"lightning_dar_trainer": state["settings"], "lightning_dar_run": state["logs"]}
    content |= {"lightning_dar_random": state["random"], "lightning_dar_skipped_steps": state["skipped_steps"]}
    torch.save(content, path)


def test_a_run_of_format_1_goes_on_bit_for_bit(fit, run):
    fit("--trainer.max_steps=3", "--trainer.val_check_interval=3")
    now = shutil.copy("runs/test/version_0/checkpoints/last.ckpt", "now.ckpt")
    write_format_1(now, "before.ckpt")
    for path in (now, "before.ckpt"):
        status, _, err = run("fit", "--ckpt_path", path, "--trainer.max_steps=6")
        assert status == 0, err
    ended = [open_checkpoint(f"runs/test/version_{number}/checkpoints/last.ckpt") for number in (1, 2)]
    assert [(end.steps, end.description["format"]) for end in ended] == [(6, FORMAT)] * 2
    for name in ended[0].tensors.infos:
        assert torch.equal(*(end.tensors.read(name) for end in ended)), name


def test_a_later_format_is_refused_by_its_version(fit, run):
    fit()
    path = "runs/test/version_0/checkpoints/last.ckpt"
    content = torch.load(path, weights_only=True)
    content["lightning_dar"] |= {"format": FORMAT + 1, "version": "99.0"}
    torch.save(content, "later.ckpt")
    status, _, err = run("validate", "--ckpt_path", "later.ckpt")
    assert status == 1 and "later.ckpt' was written by a later lightning_dar (99.0)" in err
