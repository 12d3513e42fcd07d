"""convert through the command line: the authors' checkpoints, refusals that say what to do, outputs that are whole."""

import errno
import re
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from command_line import only_line
from foreign import save
from safetensors.torch import load_file, save_file

from lightning_dar import files as outputs
from lightning_dar import load_model
from lightning_dar.convert import convert as conversion

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "tests/reference"
FOLDERS = sorted(path.name for path in REFERENCE.iterdir() if path.is_dir())


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def source(tmp_path):
    save("llama", tmp_path / "source", shard="20KB")
    return tmp_path / "source"


@pytest.mark.opens_elsewhere
@pytest.mark.parametrize("folder", ["standard", "delta_block_released"])
def test_an_exported_folder_is_opened_by_transformers(folder, run):
    status, out, err = run("convert", "--source", REFERENCE / folder, "--output", "out", "--format", "hf")
    assert status == 0, err
    where = f"with transformers {version('transformers')}, in a process of its own without this package"
    found = re.search(
        rf"^verified: opened {where}: logits (equal to the last bit|within (\S+) of their size)$", out, re.M
    )
    assert float(found[2] or 0) < 1e-5


@pytest.mark.parametrize("form", ["lightning", "hf"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_authors_checkpoints_keep_their_logits(folder, form, run):
    status, out, err = run("convert", "--source", REFERENCE / folder, "--output", "out", "--format", form)
    assert status == 0, err
    assert "verified: logits equal the source's to the last bit" in out
    expected = load_file(REFERENCE / folder / "expected.safetensors")
    logits = load_model("out")(expected["input_ids"])
    torch.testing.assert_close(logits, expected["logits"], atol=1e-4, rtol=0)


def test_all_seven_folders_are_there():
    assert len(FOLDERS) == 7


def test_options_reach_the_strategy_and_the_report_is_right(source, run):
    before = files(source)
    status, out, err = run(
        "convert",
        *("--source", source, "--output", "deep/er/out", "--model.residual.name", "delta-block"),
        *("--model.residual.options.num_blocks", "3", "--model.residual.options.query_init=normal", "--dtype=bfloat16"),
    )
    assert status == 0, err
    for word in ("standard -> delta-block", "num_blocks=3", "query_init=normal", "gate=alpha"):
        assert word in out
    assert "all 5 gates that scale a read are zero and have a gradient" in out
    size = sum(tensor.numel() * 2 for tensor in load_file("deep/er/out/model.safetensors").values())
    assert f"wrote deep/er/out ({size / 1e6:,.1f} MB of weights)" in out
    assert "100%" in err, "the progress bar"
    model = load_model("deep/er/out")
    assert (model.residual.sites_per_block, model.embed.weight.dtype) == (2, torch.bfloat16)
    assert files(source) == before
    assert sorted(path.name for path in Path("deep/er").iterdir()) == ["out"]


USAGE = [
    (["--source", "nowhere", "--output", "out"], "checkpoint 'nowhere' does not exist"),
    (["--output", "out"], "source"),
    (["--source", "source"], "output"),
    (["--source", "source", "--output", "source"], "the source lies there; choose another place"),
    (["--source", "source", "--output", "source/sub"], "the source lies there; choose another place"),
    (["--source", "source", "--output", "."], "the source lies there; choose another place"),
    (["--source", "source", "--output", "out", "--format", "onnx"], "onnx"),
    (["--source", "source", "--output", "out", "--dtype", "int8"], "int8"),
    (["--source", "source", "--output", "out", "--model.residual.name", "delta"], "unknown strategy 'delta'; known:"),
    (
        ["--source", "source", "--output", "out", "--model.residual.name=delta-block", "--model.residual.options.k=1"],
        "has no option 'k'; its options are num_blocks",
    ),
    (
        ["--source", "source", "--output", "out", "--model.residual.name=attnres"],
        "must be from 1 to model.num_layers=3",
    ),
    (
        ["--source", "source", "--output", "out", "--model.residual.name=cumulative-replacement"],
        "use an additive strategy with gate alpha, or --allow-disturbance",
    ),
    (["--source", "source", "--output", "out", "--plugins", "no_such"], "plugin 'no_such' cannot be imported"),
]


@pytest.mark.parametrize(("args", "says"), USAGE, ids=[" ".join(args) for args, _ in USAGE])
def test_usage(args, says, source, run):
    before = files(source.parent)
    status, _, err = run("convert", *args)
    assert status == 2
    assert says in only_line(err)
    assert files(source.parent) == before


def test_untrusted_input_is_one_line_and_status_1(source, run):
    (source / "config.json").write_text("{")
    status, _, err = run("convert", "--source", source, "--output", "out")
    assert status == 1
    assert "config.json: not JSON" in only_line(err)


def test_an_existing_output_stays_unless_told(source, run):
    convert = ("convert", "--source", source, "--output", "out")
    assert run(*convert)[0] == 0
    before = files(Path("out"))
    status, _, err = run(*convert, "--model.residual.name=delta-sublayer")
    assert status == 2
    assert "exists already; choose another place, or --overwrite it" in only_line(err)
    assert files(Path("out")) == before
    status, _, err = run(*convert, "--model.residual.name=delta-sublayer", "--overwrite")
    assert status == 0, err
    assert load_model("out").residual.gate.numel() == 6
    assert sorted(path.name for path in Path().iterdir()) == ["out", "source"]


def test_only_a_converted_model_is_ever_replaced(source, run):
    Path("precious").mkdir()
    Path("precious/thesis.txt").write_text("years of work")
    status, _, err = run("convert", "--source", source, "--output", "precious", "--overwrite")
    assert status == 2
    assert "is no converted model" in only_line(err)
    assert Path("precious/thesis.txt").exists()


def test_a_failed_run_keeps_the_old_output_and_leaves_no_new_one(source, run, monkeypatch):
    assert run("convert", "--source", source, "--output", "out")[0] == 0
    before = files(Path("out"))

    def full(folder, *args, **options):
        (folder / "model.safetensors").write_bytes(b"the first bytes")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(conversion, "write_safetensors", full)
    for target in ("out", "other"):
        status, _, err = run("convert", "--source", source, "--output", target, "--overwrite")
        assert status == 1
        assert f"disk full while writing {target} (No space left on device)" in only_line(err)
    assert files(Path("out")) == before
    assert sorted(path.name for path in Path().iterdir()) == ["out", "source"]


def test_a_disk_that_fills_up_while_the_library_writes(source, run):
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, allowed[1]))
    try:
        status, _, err = run("convert", "--source", source, "--output", "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert status == 1
    assert "disk full while writing out (File too large); nothing was kept" in only_line(err)
    assert sorted(path.name for path in Path().iterdir()) == ["source"]


def test_a_disk_that_is_too_small_is_found_before_writing(source, run, monkeypatch):
    free = outputs.shutil.disk_usage(".")._replace(free=1000)
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path: free)
    status, _, err = run("convert", "--source", source, "--output", "out")
    assert status == 1
    assert "disk full: out needs" in only_line(err)
    assert not Path("out").exists()


INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background passes on that it ignores it
from lightning_dar.convert import convert
import cli
real = convert.write_safetensors
def killed(*args, **options):
    real(*args, **options)
    os.kill(os.getpid(), 9 if sys.argv[-1] == "kill" else 2)
convert.write_safetensors = killed
cli.main(sys.argv[1:-1])
"""


@pytest.mark.parametrize("how", ["kill", "ctrl-c"])
def test_an_interrupted_run_leaves_nothing_that_looks_whole(how, source, run):
    before = files(source)
    args = ["convert", "--source", str(source), "--output", str(Path("out").absolute()), how]
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, *args], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == (-9 if how == "kill" else 130), done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("out").exists()
    assert files(source) == before
    assert run("convert", "--source", source, "--output", "out")[0] == 0
    assert sorted(path.name for path in Path().iterdir()) == ["out", "source"], "what was left is cleared away"


def test_tokenizer_files_come_along(source, run):
    for name in ("tokenizer_config.json", "chat_template.jinja", "merges.txt"):
        (source / name).write_text(f"content of {name}")
    (source / "training_args.bin").write_bytes(b"not ours")
    assert run("convert", "--source", source, "--output", "out")[0] == 0
    assert run("convert", "--source", "out", "--output", "hf", "--format", "hf")[0] == 0
    for name in ("tokenizer_config.json", "chat_template.jinja", "merges.txt"):
        assert Path("out", name).read_text() == Path("hf", name).read_text() == f"content of {name}"
    assert not Path("out/training_args.bin").exists()


def test_a_trained_checkpoint_becomes_a_folder_that_validates_the_same(fit, run):
    fit("--model.residual.name=delta-block", "--model.residual.options.num_blocks=2")
    checkpoint = "runs/test/version_0/checkpoints/last.ckpt"
    assert run("convert", "--source", checkpoint, "--output", "out")[0] == 0
    outputs = [run("validate", "--ckpt_path", path) for path in (checkpoint, "out")]
    assert [status for status, _, _ in outputs] == [0, 0], outputs[1][2]
    first, second = (re.search(r"val/perplexity\W+([\d.]+)", out)[1] for _, out, _ in outputs)
    assert first == second
    status, _, err = run("fit", "--ckpt_path", "out")
    assert status == 2
    assert "start from its weights by --model.init_from out" in only_line(err)


def test_help_says_what_it_takes(run):
    status, out, _ = run("convert", "--help")
    assert status == 0
    for word in ("--source", "safetensors", "--format", "trust_remote_code", "--no-verify", "--allow-disturbance"):
        assert word in out


MEASURE = """
import cli, sys
cli.main(sys.argv[1:])
peak = dict(line.split(":", 1) for line in open("/proc/self/status"))["VmHWM"]
print("peak", peak.split()[0])
"""


def write_llama(folder, layers):
    """Every layer has three matrices of 20 MB and a file of its own."""
    save("llama", folder, vocab_size=64, hidden_size=256, intermediate_size=64, num_hidden_layers=layers)
    config, single = folder / "config.json", folder / "model.safetensors"
    config.write_text(config.read_text().replace('"intermediate_size": 64', '"intermediate_size": 20000'))
    tensors = load_file(single)
    single.unlink()
    for layer in range(layers):
        own = {name: tensors.pop(name) for name in list(tensors) if f"layers.{layer}." in name}
        for name, shape in {"gate": (20_000, 256), "up": (20_000, 256), "down": (256, 20_000)}.items():
            own[f"model.layers.{layer}.mlp.{name}_proj.weight"] = torch.ones(shape)
        save_file(own, folder / f"layer-{layer}.safetensors")
    save_file(tensors, folder / "rest.safetensors")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_checkpoint(tmp_path):
    """310 MB more convert in the same memory, give or take less than two shards of 60 MB."""
    peaks = []
    for layers in (1, 6):
        source = tmp_path / str(layers)
        write_llama(source, layers)
        args = ["convert", "--source", str(source), "--output", f"{source}-out", "--no-verify"]
        args += ["--max_shard_size", "60MB"]
        done = subprocess.run([sys.executable, "-c", MEASURE, *args], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        peaks.append(int(re.search(r"peak (\d+)", done.stdout)[1]) / 1024)
    assert sum(file.stat().st_size for file in source.iterdir()) > 360e6
    assert peaks[1] < peaks[0] + 100, peaks
