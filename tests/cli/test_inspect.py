"""inspect through the command line: what it writes, what it agrees with, and what it refuses."""

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import only_line
from inspected import PLUGIN, save_checkpoint

from lightning_dar.fit.lightning_cli import RoutedCLI
from lightning_dar.inspect.command import _limits, make_parser
from lightning_dar.text.tokenizer import train_bpe

TRAINED = "runs/test/version_0/checkpoints/last.ckpt"


@pytest.fixture
def text(tmp_path) -> Path:
    """Three documents of some 90 bytes."""
    folder = tmp_path / "held_out"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"{number}: the quick brown fox jumps over the lazy dog. " * 2)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_validation_loss_to_the_last_bit(fit, run):
    fit("--data.seq_len=16", "--data.val_windows=7")
    validated = RoutedCLI(["validate", "--ckpt_path", TRAINED]).trainer.callback_metrics["val/loss"].item()
    status, out, err = run("inspect", "--ckpt_path", TRAINED, "--output", "out", "--device", "cpu")
    assert status == 0, err
    report = json.loads(Path("out/report.json").read_text())
    (found,) = report["checkpoints"]
    assert found["loss"]["loss"] == validated
    assert [row["loss"] for row in found["causal"]["strength"] if row["strength"] == 1] == [validated]
    assert found["step"] == 4
    assert report["data"]["windows"] == 7
    assert report["data"]["split"] == "validation"
    assert f"{validated:.4f}" in out


def test_other_data_as_validate_takes_them(fit, run, tmp_path):
    fit("--data.seq_len=16", "--data.val_windows=9", "--model.residual.name=standard")
    other = tmp_path / "other"
    other.mkdir()
    for number in range(40):
        (other / f"{number}.txt").write_text(f"{number}: another text than the one that it has learnt " * 9)
    args = ["--ckpt_path", TRAINED, f"--data.source={other}"]
    validated = RoutedCLI(["validate", *args]).trainer.callback_metrics["val/loss"].item()
    prepared = ["--ckpt_path", TRAINED, "--data.source=own"]
    for output, source, asked in (("first", str(other), [*args, "--data.dir=own"]), ("second", "own", prepared)):
        status, _, err = run("inspect", *asked, "--output", output, "--device=cpu")
        assert status == 0, err
        report = json.loads(Path(output, "report.json").read_text())
        assert report["checkpoints"][0]["loss"]["loss"] == validated
        assert report["data"]["windows"] == 9
        assert report["data"]["source"] == report["settings"]["data"]["source"] == source


def test_two_checkpoints_side_by_side(run, text, tmp_path):
    paths = [save_checkpoint(Path(f"runs/{name}/last.ckpt"), name) for name in ("delta-sublayer", "standard")]
    args = ["--ckpt_path", paths[0], "--ckpt_path", paths[1], "--text", text, "--seq_len=16", "--device=cpu"]
    status, out, err = run("inspect", *args, "--output=out/report", "--quick")
    assert status == 0, err
    folder = Path("out/report")
    report = json.loads((folder / "report.json").read_text())
    routed, standard = report["checkpoints"]
    assert [found["name"] for found in (routed, standard)] == ["delta-sublayer", "standard"]
    assert report["settings"]["quick"] is True
    assert report["versions"].keys() == {"lightning_dar", "torch", "numpy", "python"}
    assert report["data"]["documents"] == 3
    assert len(report["data"]["fingerprint"]) == 64

    charts = {path.stem for path in folder.glob("*.csv")}
    assert charts == {path.stem for path in folder.glob("*.png")}
    assert not list(Path("out").glob("*.partial"))
    page = (folder / "report.html").read_text()
    for sentence in report["lead"].split("\n\n"):
        assert sentence.split(":")[0] in page
    assert "strategy 'standard' shows no routing" in out
    assert "rank correlation of mass and importance within sites: renormalised" in out
    assert out.rstrip().endswith(str(folder / "report.html"))

    cells = {(str(row["site"]), row["label"]): row for row in routed["causal"]["knock_out"]["sites"]}
    for chart, key in (
        ("mass", "mass"),
        ("importance-renormalised", "renormalised"),
        ("importance-removed", "removed"),
    ):
        written = {
            (site, source): float(value)
            for site, source, value in (row.values() for row in rows_of(folder / f"{chart}-delta-sublayer.csv"))
            if value
        }
        assert written == {place: row[key] for place, row in cells.items()}
    sharpness = [float(list(row.values())[2]) for row in rows_of(folder / "sharpness.csv")]
    sites = routed["routing"]["sites"]
    assert sharpness == [*(site["sharpness"] for site in sites), *(1 / site["num_sources"] for site in sites)]
    swept = [tuple(float(value) for value in list(row.values())[1:]) for row in rows_of(folder / "strength.csv")]
    assert swept == [
        tuple(row[key] for key in ("strength", "difference", "low", "high")) for row in routed["causal"]["strength"]
    ]

    status, _, err = run("inspect", *args, "--output=out/report", "--quick")
    assert status == 2
    assert "--output out/report: exists already; choose another place, or --overwrite it" in only_line(err)


def test_a_plugin_and_an_overwritten_report(run, text, tmp_path, monkeypatch, own_registry):
    (tmp_path / "recent_variant.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    exec(PLUGIN, {"__name__": "recent_variant"})
    path = save_checkpoint(Path("model.ckpt"), "recent")
    Path("out").mkdir()
    Path("out/report.json").write_text("{}")
    args = ["--ckpt_path", path, "--text", text, "--seq_len=16", "--device=cpu", "--output=out", "--overwrite"]
    status, out, err = run("inspect", *args, "--plugins=recent_variant", "--max_tokens=32")
    sys.modules.pop("recent_variant", None)
    assert status == 0, err
    report = json.loads(Path("out/report.json").read_text())
    assert report["data"]["tokens"] == 32
    assert report["checkpoints"][0]["routing"] is None
    assert "strategy 'recent' shows no routing" in out
    assert {path.name for path in Path("out").iterdir()} == {"report.json", "report.html"}


def refused(run, *args) -> str:
    status, _, err = run("inspect", "--device=cpu", "--output=out", *args)
    assert not Path("out").exists()
    return f"{status} {only_line(err)}"


def test_text_that_cannot_be_read(run, text):
    path = save_checkpoint(Path("model.ckpt"), "standard")
    Path("empty.txt").write_text("  \n")
    Path("short.txt").write_text("too short")
    says = refused(run, "--ckpt_path", path, "--text", "empty.txt")
    left_out = "left out 1 document(s) that are no text: 1 empty; the first: the text is empty"
    assert says == f"1 error: --text empty.txt: no text in it; {left_out}"
    says = refused(run, "--ckpt_path", path, "--text", "short.txt", "--seq_len=16")
    assert says == "1 error: --text short.txt: 10 tokens, a window has 17; give more text, or a lower --seq_len"
    says = refused(run, "--ckpt_path", path, "--text", "nowhere.txt")
    assert "1 error: --text: nowhere.txt does not exist" in says
    Path("a.jsonl").write_text('{"body": "x"}\n')
    assert "no field 'text' (--text_field)" in refused(run, "--ckpt_path", path, "--text", "a.jsonl")


def test_checkpoints_that_do_not_fit_the_text_or_each_other(run, text, text_folder):
    bpe = train_bpe(300, [(text_folder / "00.txt").read_text()]).to_json()
    first = save_checkpoint(Path("first.ckpt"), "standard")
    other = save_checkpoint(Path("other.ckpt"), "standard", tokenizer=bpe, vocab=300)
    says = refused(run, "--ckpt_path", first, "--ckpt_path", other, "--text", text)
    assert says.startswith("1 error: 'other.ckpt' has another tokenizer than 'first.ckpt'")
    assert "inspect them one by one" in says
    small = save_checkpoint(Path("small.ckpt"), "standard", vocab=200)
    says = refused(run, "--ckpt_path", small, "--text", text)
    assert "1 error: 'small.ckpt': its tokenizer has 257 ids, its vocabulary 200" in says
    bare = save_checkpoint(Path("bare.ckpt"), "standard", tokenizer=None)
    assert "1 error: 'bare.ckpt' has no tokenizer.json" in refused(run, "--ckpt_path", bare, "--text", text)


def test_options_that_cannot_work(run, text):
    path = save_checkpoint(Path("model.ckpt"), "standard")
    given = ("--ckpt_path", path, "--text", text)
    for folder in ([], ["--data.dir=shards"]):
        says = refused(run, "--ckpt_path", path, *folder)
        assert "2 error: 'model.ckpt' does not say what it was trained on: give --text" in says
    for option in ("source", "dir"):
        says = refused(run, *given, f"--data.{option}=x")
        assert says == f"2 error: --text and --data.{option}: two texts to read; give one of them"
    assert "1 error: data.source: nowhere does not exist" in refused(
        run, "--ckpt_path", path, "--data.source=nowhere", "--seq_len=16"
    )
    assert "--ckpt_path model.ckpt: given twice" in refused(run, *given, "--ckpt_path", path)
    assert "2 error: --max_tokens 0: must be at least 1" in refused(run, *given, "--max_tokens=0")
    assert "--max_tokens 8: less than one window of 16" in refused(run, *given, "--max_tokens=8", "--seq_len=16")
    assert "--device nowhere: not usable here" in refused(run, *given, "--device=nowhere")
    assert "2 error: checkpoint 'no.ckpt' does not exist" in refused(run, "--ckpt_path=no.ckpt")
    assert "ckpt_path" in refused(run)


def test_a_disk_that_cannot_be_written_is_found_before_the_work(run, text, monkeypatch):
    def measured(*_):
        raise AssertionError("the work was done first")

    monkeypatch.setattr("lightning_dar.inspect.report.make_report", measured)
    path = save_checkpoint(Path("model.ckpt"), "standard")
    given = ("inspect", "--ckpt_path", path, "--text", text, "--seq_len=16", "--device=cpu")
    Path("file").write_text("")
    status, _, err = run(*given, "--output=file/out")
    assert (status, "file/out: cannot be written" in only_line(err)) == (1, True)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    status, _, err = run(*given, "--output=out")
    assert (status, "disk full: out needs 0.05 GB" in only_line(err)) == (1, True)


@pytest.mark.parametrize(("options", "tokens"), [(["--quick"], 8 * 300), (["--quick", "--max_tokens=900"], 900)])
def test_quick_reads_as_many_windows_as_intervals_need(options, tokens):
    parsed = make_parser().parse_args(["--ckpt_path=x", "--output=y", "--seq_len=300", *options])
    assert _limits(parsed, None) == {"seq_len": 300, "max_tokens": tokens}


def test_only_a_report_is_overwritten(run, text):
    path = save_checkpoint(Path("model.ckpt"), "standard")
    Path("notes").mkdir()
    Path("notes/kept.txt").write_text("mine")
    status, _, err = run("inspect", "--ckpt_path", path, "--text", text, "--output=notes", "--overwrite")
    assert status == 2
    assert "--output notes: exists and is no report" in only_line(err)
    assert Path("notes/kept.txt").read_text() == "mine"
    status, _, err = run("inspect", "--ckpt_path", path, "--text", text, "--output=.", "--overwrite")
    assert status == 2
    assert "the source lies there" in only_line(err)


def test_data_prepared_with_another_tokenizer(run, text_folder):
    data = {"source": str(text_folder), "tokenizer": "bytes", "dir": "shards", "seq_len": 16}
    assert run("prepare", f"--data.source={text_folder}", "--data.tokenizer=bytes", "--data.dir=shards")[0] == 0
    bpe = train_bpe(300, [(text_folder / "00.txt").read_text()]).to_json()
    content = {"datamodule_hyper_parameters": data}
    path = save_checkpoint(Path("model.ckpt"), "standard", content, tokenizer=bpe, vocab=300)
    assert "shards was prepared with another tokenizer than that of 'model.ckpt'" in refused(run, "--ckpt_path", path)
