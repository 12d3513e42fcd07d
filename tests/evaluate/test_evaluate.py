"""`python cli.py evaluate`: both formats of one model score the same, each opened by its own library."""

import json

import pytest
import torch
from command_line import fit_args, only_line
from foreign import save
from spoken import lay
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import cli
from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.residual import ResidualConfig

pytest.importorskip("lm_eval")


def write_tokenizer(folder):
    """Bytes as tokens, behind an end token: the vocabulary fits any text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<eos>": 0, **{char: i + 1 for i, char in enumerate(alphabet)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tiny llama, and one routed model in both formats."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    save("llama", folder / "source", vocab_size=257, eos_token_id=0, bos_token_id=None)
    write_tokenizer(folder / "source")
    for form in ("lightning", "hf"):
        residual = ResidualConfig(name="delta-block", options={"num_blocks": 2, "gate": "none"})
        convert(
            Conversion(
                source=str(folder / "source"),
                output=str(folder / form),
                format=form,
                residual=residual,
                allow_disturbance=True,
                verify=False,
            )
        )
    return folder


def test_a_routed_model_scores_the_same_in_both_formats(folders, tmp_path, capsys):
    paths = [f"--ckpt_path={folders / name}" for name in ("lightning", "hf", "source")]
    cli.main(["evaluate", *paths, "--output", str(tmp_path / "scores.json"), "--device", "cpu", "--batch_size", "1"])
    ours, theirs, plain = json.loads((tmp_path / "scores.json").read_text())
    assert (ours["through"], theirs["through"]) == ("lightning_dar", "transformers")
    assert ours["tasks"][0]["accuracy"] == theirs["tasks"][0]["accuracy"] == ours["average"]
    assert ours["tasks"][0]["normalised"] == theirs["tasks"][0]["normalised"]
    assert ours["log_likelihood"] == pytest.approx(theirs["log_likelihood"], rel=1e-6)
    assert plain["log_likelihood"] != pytest.approx(ours["log_likelihood"], rel=1e-3), "routing shows in the score"
    assert "average" in capsys.readouterr().out


def test_rolling_likelihoods_and_texts_are_those_of_transformers(folders):
    """The harness's own `hf` model on the same network says the same, in windows shorter than the text too."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from lightning_dar.checkpoint.load import open_checkpoint
    from lightning_dar.evaluate.scores import _ours

    theirs = HFLM(pretrained=str(folders / "source"), device="cpu", batch_size=2, max_length=16)
    ours = _ours(open_checkpoint(folders / "source"), torch.device("cpu"), batch_size=2)
    ours.max_length = 16

    def ask(kind, *args):
        return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in args]

    rolling = ask("loglikelihood_rolling", ("a text that is longer than one window of sixteen",), ("short",))
    assert ours.loglikelihood_rolling(rolling) == pytest.approx(theirs.loglikelihood_rolling(rolling), rel=1e-5)
    texts = ask("generate_until", ("one two", {"until": ["\n\n"], "max_gen_toks": 6, "do_sample": False}))
    assert ours.generate_until(texts) == theirs.generate_until(texts)


def test_texts_begin_as_in_transformers(tmp_path):
    """Where the tokenizer puts a token before every text."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from lightning_dar.checkpoint.load import open_checkpoint
    from lightning_dar.evaluate.scores import _ours

    save("llama", tmp_path / "model", vocab_size=258, eos_token_id=257, bos_token_id=256)
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    lay(tmp_path / "model", {"tokenizer_config.json": named}, special=("<s>", "</s>"), template="<s> $A")
    theirs = HFLM(pretrained=str(tmp_path / "model"), device="cpu", batch_size=1, max_length=16)
    ours = _ours(open_checkpoint(tmp_path / "model"), torch.device("cpu"), batch_size=1)
    ours.max_length = 16

    def ask(kind, *args):
        return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in args]

    pairs = ask("loglikelihood", ("one ", "two"), ("", "one"), ("longer than the window is", " two"))
    for mine, yours in zip(ours.loglikelihood(pairs), theirs.loglikelihood(pairs), strict=True):
        assert mine == pytest.approx(yours, rel=1e-5)
    rolling = ask("loglikelihood_rolling", ("a text that is longer than one window of sixteen",), ("short",))
    assert ours.loglikelihood_rolling(rolling) == pytest.approx(theirs.loglikelihood_rolling(rolling), rel=1e-5)


def test_fit_scores_its_own_end(run_in, text_folder, capsys):
    args = ["--trainer.callbacks+=callbacks.Downstream", "--trainer.callbacks.limit=5"]
    cli.main([*fit_args(text_folder), *args])
    found = json.loads((run_in / "runs/test/version_0/downstream.json").read_text())
    assert found["tasks"][0]["task"] == "first_facts"
    assert "average" in capsys.readouterr().out


@pytest.fixture
def run_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--tasks", "no_such_task"], 2, "--tasks no_such_task: unknown"),
        (["--limit", "0"], 2, "--limit 0"),
        (["--output", "/"], 2, "exists already"),
    ],
)
def test_bad_input_is_one_line(folders, capsys, args, status, message):
    with pytest.raises(SystemExit) as stop:
        cli.main(["evaluate", "--ckpt_path", str(folders / "lightning"), *args])
    assert stop.value.code == status
    assert message in only_line(capsys.readouterr().err)


def test_data_sets_that_cannot_be_had_are_named(folders, capsys, monkeypatch):
    """Without the network, which the hub's own switch stands for here."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit) as stop:
        cli.main(["evaluate", "--ckpt_path", str(folders / "lightning"), "--tasks", "piqa", "boolq", "first_facts"])
    assert stop.value.code == 1
    assert "the data sets of piqa, boolq cannot be had" in only_line(capsys.readouterr().err)


def test_the_papers_tasks_are_eight_and_known():
    from lightning_dar.evaluate.tasks import PAPER_TASKS, _manager, task_names

    assert task_names(["paper", "piqa"]) == list(PAPER_TASKS)
    assert set(PAPER_TASKS) <= set(_manager(True).all_tasks)
