"""A normal run says nothing on stderr but what is meant for its user."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from command_line import fit_args
from lightning.fabric.utilities.warnings import PossibleUserWarning

from lightning_dar.fit.terminal import quiet

ROOT = Path(__file__).parents[2]
CHECKPOINT = "runs/test/version_0/checkpoints/last.ckpt"
EXPECTED = "|".join(
    (
        r"Seed set to 42",
        r"[GT]PU available: \w+, us(ed|ing): .*",
        r"[\d,]+ tokens in .* s, [\d,]+ tokens per second",
        r"Using bfloat16 Automatic Mixed Precision \(AMP\)",
        r"Restor(ing|ed all) states from the checkpoint .*",
        r"`Trainer.fit` stopped: `max_steps=\d` reached.",
        r"(Encoding|Converting|version_0): .*",  # progress
    )
)
COMMANDS = {
    "validate": ["validate", f"--ckpt_path={CHECKPOINT}"],
    "generate": ["generate", f"--ckpt_path={CHECKPOINT}", "--prompt=a", "--max_new_tokens=2"],
    "convert": ["convert", f"--source={CHECKPOINT}", "--output=converted"],
    "inspect": ["inspect", f"--ckpt_path={CHECKPOINT}", "--output=report", "--quick", "--max_tokens=512"],
    "plan": ["plan", "--model.preset=220m"],
}
ALL = """
import json, sys, cli
for name, args in json.loads(sys.argv[1]).items():
    for stream in (sys.stdout, sys.stderr):
        print(f"<<{name}>>", file=stream, flush=True)
    cli.main(args)
"""


@pytest.fixture(scope="module")
def said(text_folder, tmp_path_factory) -> dict[str, tuple[str, str]]:
    """stdout and stderr by command, as a user's `python -W default` gives them; all in one process."""
    fit = [arg.replace("model_summary=false", "model_summary=true") for arg in fit_args(text_folder)]
    commands = {"fit": [*fit, "--trainer.max_steps=2"], "go on": [*fit, "--ckpt_path=last"], **COMMANDS}
    commands["start"] = ["fit", f"--ckpt_path={CHECKPOINT}", "--trainer.max_steps=5", "--trainer.precision=bf16-mixed"]
    saving = "--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint"
    commands["start"] += [saving, "--trainer.callbacks.dirpath=told"]
    logger = "lightning.pytorch.loggers.CSVLogger"
    commands["start"] += [f"--trainer.logger={logger}", "--trainer.logger.save_dir=csv"]
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", ALL, json.dumps(commands)],
        cwd=tmp_path_factory.mktemp("quiet"),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    out, err = (re.split(r"<<([\w ]+)>>\n", text)[1:] for text in (done.stdout, done.stderr))
    return dict(zip(err[::2], zip(out[1::2], err[1::2], strict=True), strict=True))


@pytest.mark.parametrize("command", ["fit", "go on", "start", *COMMANDS])
def test_nothing_that_a_user_cannot_help(command, said):
    lines = re.split(r"[\r\n]+", said[command][1])
    assert [line for line in lines if line.strip() and not re.fullmatch(EXPECTED, line)] == []


def test_the_size_is_said_without_flops_that_nobody_counted(said):
    out, _ = said["fit"]
    assert "FLOPs" not in out
    (total,) = re.findall(r"([\d,]+) parameters, \1 of them trained", out)
    matrices = 257 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 48)  # embeddings; attention and MLP of two layers
    gains = 2 * (2 * 32 + 2 * 16) + 32
    assert int(total.replace(",", "")) == matrices + gains + 2 * 4 * 32  # the last: the queries of four sites


def test_other_warnings_are_still_heard():
    lines = {
        "The 'train_dataloader' does not have many workers which may be a bottleneck.": PossibleUserWarning,
        "`isinstance(treespec, LeafSpec)` is deprecated": FutureWarning,  # here not from Lightning
        "something else about many workers": UserWarning,
    }
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with quiet():
            for line, category in lines.items():
                warnings.warn(line, category, stacklevel=1)
    assert [str(warning.message) for warning in heard] == list(lines)[1:]
