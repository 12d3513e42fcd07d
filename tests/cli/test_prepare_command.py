"""`prepare` in parts and mixes of sets, from the command line."""

import re
import shutil
from pathlib import Path

import pytest
from command_line import SIZES, fit_args, only_line


@pytest.fixture
def prepare(run, text_folder):
    def prepare_cli(*args: str) -> tuple[int, str, str]:
        return run("prepare", f"--data.source={text_folder}", "--data.tokenizer=bytes", *args)

    return prepare_cli


def test_text_that_is_none_is_counted_or_refused(run, text_folder, tmp_path):
    shutil.copytree(text_folder, tmp_path / "text")
    (tmp_path / "text/latin.txt").write_bytes("naïve".encode("latin-1"))
    args = ("prepare", "--data.source=text", "--data.tokenizer=bytes")
    status, _, err = run(*args, "--data.bad_text=refuse")
    assert status == 1
    assert "latin.txt:1: not UTF-8 (byte 0xef); mend it, or leave such documents out by data.bad_text skip" in err
    status, _, err = run(*args)
    assert status == 0
    assert err.count("left out 1 document(s) that are no text: 1 not UTF-8") == 1
    status, _, err = run(*args, "--data.bad_text=drop")
    assert status == 2
    assert "bad_text" in only_line(err)


def test_parts_are_prepared_and_merged(prepare, monkeypatch):
    monkeypatch.setattr("lightning_dar.text.pieces.UNIT_BYTES", 10_000)
    status, whole, err = prepare("--data.dir=whole")
    assert status == 0, err
    assert "tokens per second" in err
    for shard in ("2/2", "1/2"):
        status, out, err = prepare("--data.dir=parts", "--shard", shard)
        assert status == 0, err
        assert f"parts, part {shard}: " in out
    status, out, err = prepare("--data.dir=parts", "--merge", "2")
    assert status == 0, err
    assert out.replace("parts", "whole") == whole
    assert Path("parts/manifest.json").read_bytes() == Path("whole/manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["--shard", "1/900"], 2, "--shard 1/900: the source has 1 unit(s)"),
        (["--merge", "2"], 1, "lacks 2 of 2 parts: 1-of-2, 2-of-2"),
        (["--shard", "1/2", "--merge", "2"], 2, "--shard and --merge"),
        (["--merge", "2", "--data.mix={a: {source: x, weight: 1}}"], 2, "--merge: data.mix holds token shards"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(prepare, args, status, says):
    got, _, err = prepare("--data.dir=new", *args)
    assert got == status
    assert says in only_line(err)
    assert not Path("new").exists()


def test_a_mix_is_trained_validated_and_left_again(run, text_folder, prepare):
    for name, fraction in (("a", "0.2"), ("b", "0.4")):
        assert prepare(f"--data.dir={name}", f"--data.val_fraction={fraction}")[0] == 0
    mix = "--data.mix={a: {source: a, weight: 0.75}, b: {source: b, weight: 0.25}}"
    args = [arg for arg in fit_args(text_folder) if "data.dir" not in arg and "data.source" not in arg]
    status, out, err = run(*args, mix, "--data.val_windows=16", "--trainer.num_sanity_val_steps=0")
    assert status == 0, err
    checkpoint = "--ckpt_path=runs/test/version_0/checkpoints/last.ckpt"
    status, validated, err = run("validate", checkpoint)
    assert status == 0, err
    trained = re.search(r"validation perplexity +([\d.]+)", out)[1]
    assert float(re.search(r"val/perplexity\W+([\d.]+)", validated)[1]) == pytest.approx(float(trained), rel=1e-4)
    status, table, err = run("validate", checkpoint, "--domains={first: a, second: b}")
    assert status == 0, err
    assert "first" in table and "second" in table
    status, _, err = run("validate", checkpoint, f"--data.source={text_folder}")
    assert status == 0, err
    assert Path("data").exists(), "text was prepared in place of the mix"


@pytest.mark.parametrize(
    ("mix", "says"),
    [
        ("{a: {source: nowhere, weight: 1}}", "data.mix.a.source: nowhere is no prepared folder"),
        ("{a: {weight: 1}}", "data.mix.a: {'weight': 1.0}; it needs source"),
        ("{a: {source: x, wieght: 1}}", "data.mix.a: {'source': 'x', 'wieght': 1.0}; it needs"),
        ("5", "data.mix"),
    ],
)
def test_a_bad_mix_is_named(run, mix, says):
    status, _, err = run("fit", *SIZES, f"--data.mix={mix}", "--trainer.max_steps=1", "--trainer.accelerator=cpu")
    assert status in (1, 2)
    assert says in only_line(err)
