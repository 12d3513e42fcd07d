"""Wrong input: one line that names the option and the value, status 2 for usage and 1 for data, nothing lost."""

from pathlib import Path

import pytest
import torch
from command_line import SIZES, fit_args, only_line

USAGE = [
    (["--model.residual.name=delta-bloc"], "unknown strategy 'delta-bloc'"),
    (["--model.residual.name=delta-bloc"], "Did you mean 'delta-block'?"),
    (["--model.residual.options.depth=3"], "has no option 'depth'; its options are gate, null_source, query_init"),
    (["--model.residual.name=delta-block", "--model.residual.options.num_blocks=3"], "num_blocks=3"),
    (["--model.residual.name=delta-block", "--model.residual.options.num_blocks=0"], "from 1 to model.num_layers=2"),
    (["--model.num_heads=3", "--model.head_dim=8", "--model.num_kv_heads=2"], "model.num_kv_heads=2"),
    (["--model.vocab_size=97"], "model.vocab_size=97 is smaller than the 257 ids"),
    (["--model.attention_backend=xformers"], "xformers"),
    (["--model.optimizer.lr=-1"], "model.optimizer.lr=-1"),
    (["--model.optimizer.betas=[0.9, 1.0]"], "model.optimizer.betas=[0.9, 1.0]"),
    (["--model.optimizer.name=sgd"], "model.optimizer.name=sgd: must be adamw or muon"),
    (["--model.optimizer.schedule=step"], "model.optimizer.schedule=step: must be cosine, linear or wsd"),
    (
        ["--model.optimizer.name=muon", "--trainer.strategy.class_path=lightning_dar.training.FSDP"],
        "model.optimizer.name=muon: needs whole matrices",
    ),
    (["--model.init_std=-1"], "model.init_std=-1"),
    (["--trainer.max_steps=-1", "--trainer.max_epochs=-1"], "trainer.max_steps"),
    (["--trainer.accelerator=gpu"], "needs a CUDA GPU"),
    (["--trainer.strategy=no_such"], "no_such"),
    (["--data.batch_size=0"], "data.batch_size"),
    (["--data.batch_size=many"], "data.batch_size=many: must be int"),
    (["--model.num_layers=six"], "model.num_layers=six: must be int or null"),
    (["--data.tokenizer=bpe:many"], "bpe:many"),
    (["--data.no_such_option=1"], "--data.no_such_option"),
    (["--ckpt_path=no_such.ckpt"], "'no_such.ckpt' does not exist"),
    (["--plugins=no_such_module"], "plugin 'no_such_module' cannot be imported"),
    (["--config=no_such.yaml"], "no_such.yaml"),
]


@pytest.mark.parametrize(("args", "says"), USAGE, ids=[" ".join(args) for args, _ in USAGE])
def test_usage(args, says, run, text_folder):
    status, _, err = run(*fit_args(text_folder), *args)
    assert status == 2
    assert says in only_line(err)


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir()
    (folder / name).write_text(text)
    return folder


DATA = [
    (lambda path: path / "nowhere", "nowhere"),
    (lambda path: write(path / "s", "a.txt", ""), "no text"),
    (lambda path: write(path / "s", "a.txt", "short"), "data.val_fraction"),
    (lambda path: write(path / "s", "a.jsonl", '{"text": "good"}\n{"text": broken}\n'), "a.jsonl:2"),
    (lambda path: write(path / "s", "a.jsonl", '{"body": "good"}\n'), "body"),
]


@pytest.mark.parametrize(("make", "says"), DATA, ids=["missing", "empty", "too short", "not JSON", "no field"])
def test_data(make, says, run, tmp_path):
    status, _, err = run(*fit_args(make(tmp_path)))
    assert status == 1
    assert says in only_line(err)
    assert not Path("shards").exists()


def test_a_tokenizer_file_that_is_none(run, text_folder, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    status, _, err = run(*fit_args(text_folder), "--data.tokenizer=tokenizer.json")
    assert status == 1
    assert "tokenizer.json" in only_line(err)


def test_a_folder_prepared_otherwise_is_refused_and_kept(fit, run, text_folder):
    fit()
    before = {path: path.read_bytes() for path in Path("shards").rglob("*") if path.is_file()}
    status, _, err = run(*fit_args(text_folder), "--data.tokenizer=bpe:300")
    assert status == 1
    assert "data.tokenizer: the folder has bytes, asked for bpe:300" in only_line(err)
    assert before == {path: path.read_bytes() for path in Path("shards").rglob("*") if path.is_file()}


def test_a_truncated_shard_is_named(fit, run, text_folder):
    fit()
    shard = next(Path("shards/train").glob("*.bin"))
    shard.write_bytes(shard.read_bytes()[:-100])
    status, _, err = run(*fit_args(text_folder))
    assert status == 1
    assert shard.name in only_line(err)


def test_a_corrupt_shard_is_named(fit, run, text_folder):
    fit()
    shard = next(Path("shards/train").glob("*.bin"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    status, _, err = run(*fit_args(text_folder))
    assert status == 1
    assert f"{shard.name}: shard damaged" in only_line(err)


@pytest.mark.parametrize("option", ["--model.residual.name=standard", "--model.hidden_size=64"])
def test_settings_that_contradict_the_checkpoint(option, fit, run):
    fit()
    status, _, err = run("validate", "--ckpt_path=runs/test/version_0/checkpoints/last.ckpt", option)
    assert status == 2
    assert "the checkpoint has" in only_line(err)


@pytest.mark.parametrize("content", ["text", "pickle", "foreign", "truncated"])
def test_a_checkpoint_that_is_none(content, fit, run):
    path = Path("broken.ckpt")
    if content == "text":
        path.write_text("not a checkpoint")
    elif content == "pickle":
        torch.save({"state_dict": {}, "evil": Path}, path)
    elif content == "foreign":
        torch.save({"state_dict": {}}, path)
    else:
        fit()
        whole = Path("runs/test/version_0/checkpoints/last.ckpt").read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    status, _, err = run("validate", "--ckpt_path", path)
    assert status == 1
    assert "broken.ckpt" in only_line(err)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU is told")
def test_the_large_config_says_what_it_needs(run):
    config = Path(__file__).parents[2] / "configs/delta_1b.yaml"
    status, _, err = run("fit", "--config", config)
    assert status == 2
    assert "needs a CUDA GPU" in only_line(err)
    assert "configs/quickstart.yaml" in err
    status, _, err = run("prepare", "--config", config)
    assert status == 1
    assert "data/fineweb-edu" in only_line(err)


def test_validate_asks_for_a_checkpoint(run):
    status, _, err = run("validate")
    assert status == 2
    assert "give --ckpt_path" in only_line(err)


def test_a_resume_with_nothing_left_to_do(fit, run):
    fit()
    status, _, err = run("fit", "--ckpt_path=runs/test/version_0/checkpoints/last.ckpt")
    assert status == 2
    assert "trainer.max_steps=4: the checkpoint has done 4 steps" in only_line(err)


def test_no_subcommand(run):
    status, _, err = run()
    assert status == 2
    assert "fit,validate,prepare" in only_line(err)


def test_sizes_are_asked_for(run, text_folder):
    args = [arg for arg in fit_args(text_folder) if arg not in SIZES]
    status, _, err = run(*args)
    assert status == 2
    assert "model.hidden_size is not set" in only_line(err)
