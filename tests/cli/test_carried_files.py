"""What belongs to a model comes out of training as it went in: chat templates, generation, tokenizer, to the byte."""

import json
from pathlib import Path

import pytest
from command_line import SIZES, fit_args, only_line
from foreign import save
from spoken import IDS, chat_files, lay
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from lightning_dar.checkpoint.carried import tokenizer_of
from lightning_dar.checkpoint.load import open_checkpoint

NEW = ("config.json", "model.safetensors")
TALK = [{"role": "user", "content": "tan"}, {"role": "model", "content": "kori"}]


def contents(folder) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


@pytest.fixture
def chat(tmp_path):
    save("llama", tmp_path / "chat", vocab_size=260, eos_token_id=IDS["<end_of_turn>"], bos_token_id=IDS["<s>"])
    return lay(tmp_path / "chat", chat_files(), template="<s> $A")


def fit_from(path, text_folder) -> list[str]:
    own = ("--data.tokenizer=", *(size.split("=")[0] for size in SIZES))
    return [*(arg for arg in fit_args(text_folder) if not arg.startswith(own)), "--model.init_from", path]


@pytest.mark.parametrize("strategy", ["standard", "delta-sublayer"])
def test_a_chat_model_is_one_after_training(strategy, chat, run, text_folder):
    steps = [
        ("convert", "--source", chat, "--output", "start", f"--model.residual.name={strategy}"),
        (*fit_from("start", text_folder), "--trainer.max_steps=2"),
        (*fit_from("start", text_folder), "--ckpt_path=last"),
    ]
    for step in steps:
        status, _, err = run(*step)
        assert status == 0, err
    last = "runs/test/version_0/checkpoints/last.ckpt"
    assert open_checkpoint(last).content["global_step"] == 4
    assert run("convert", "--source", last, "--output", "hf", "--format", "hf")[0] == 0
    before, after = contents(chat), contents("hf")
    assert {name: after.get(name) for name in before if name not in NEW} == {
        name: content for name, content in before.items() if name not in NEW
    }
    assert tokenizer_of(open_checkpoint(last)).end_id == IDS["<end_of_turn>"]

    wanted, found = (AutoTokenizer.from_pretrained(path, trust_remote_code=True) for path in (chat, "hf"))
    for name in (None, "tools"):
        told = wanted.apply_chat_template(TALK, chat_template=name, tokenize=False)
        assert found.apply_chat_template(TALK, chat_template=name, tokenize=False) == told
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        assert getattr(found, name) == getattr(wanted, name)
    config = json.loads(after["config.json"])
    assert (config["eos_token_id"], config["bos_token_id"]) == (IDS["<end_of_turn>"], IDS["<s>"])


@pytest.mark.parametrize("strategy", ["standard", "delta-sublayer"])
def test_generation_stops_at_each_end(strategy, chat, run):
    """The model's head is turned so that it says one token for ever."""
    args = ("--format", "hf", f"--model.residual.name={strategy}")
    assert run("convert", "--source", chat, "--output", "ends", *args)[0] == 0
    model = AutoModelForCausalLM.from_pretrained("ends", trust_remote_code=True).eval()
    assert model.generation_config.eos_token_id == GenerationConfig.from_pretrained(chat).eos_token_id
    prompt = AutoTokenizer.from_pretrained(chat)("tan", return_tensors="pt").input_ids
    for end in chat_files()["generation_config.json"]["eos_token_id"]:
        model.forward = saying(model.forward, end)
        out = model.generate(prompt, max_new_tokens=7, do_sample=False)
        assert out[0, prompt.shape[1] :].tolist() == [end]
    model.forward = saying(model.forward, 65)
    assert model.generate(prompt, max_new_tokens=7, do_sample=False).shape[1] == prompt.shape[1] + 7


def saying(forward, number):
    def say(*args, **kwargs):
        out = forward(*args, **kwargs)
        out.logits.zero_()
        out.logits[..., number] = 9.0
        return out

    return say


def test_a_tokenizer_of_ones_own_brings_its_files_to_the_model(run, text_folder, tmp_path):
    files = chat_files()
    lay(tmp_path / "words", {**files, "config.json": {"eos_token_id": 65}}, template="<s> $A")
    status, _, err = run(*fit_args(text_folder), "--data.tokenizer=words")
    assert status == 0, err
    last = "runs/test/version_0/checkpoints/last.ckpt"
    assert run("convert", "--source", last, "--output", "hf", "--format", "hf")[0] == 0
    after = contents("hf")
    of_the_model = ("generation_config.json", "processor_config.json", "preprocessor_config.json", "config.json")
    for name, content in contents("words").items():
        assert name in of_the_model or after[name] == content, name
    generation = json.loads(after["generation_config.json"])
    assert generation == {"bos_token_id": IDS["<s>"], "eos_token_id": IDS["<end_of_turn>"]}
    assert json.loads(after["config.json"])["eos_token_id"] == IDS["<end_of_turn>"]


def test_what_bpe_learnt_ends_its_texts_in_transformers(fit, run):
    fit("--data.tokenizer=bpe:300", "--data.dir=bpe_shards", "--model.residual.name=delta-sublayer")
    last = "runs/test/version_0/checkpoints/last.ckpt"
    assert run("convert", "--source", last, "--output", "hf", "--format", "hf")[0] == 0
    tokenizer = AutoTokenizer.from_pretrained("hf", trust_remote_code=True)
    generation = GenerationConfig.from_pretrained("hf")
    config = json.loads(Path("hf/config.json").read_text())
    assert tokenizer.eos_token == "<|endoftext|>"
    assert tokenizer.eos_token_id == generation.eos_token_id == config["eos_token_id"] == 0
    assert tokenizer.decode(tokenizer.encode("tan , kori .")) == "tan , kori ."
    described = json.loads(Path("hf/tokenizer_config.json").read_text())
    assert described["model_input_names"] == ["input_ids", "attention_mask"], "what generate of transformers 4 takes"
    assert run("convert", "--source", "hf", "--output", "again")[0] == 0
    assert tokenizer_of(open_checkpoint("again")).end_id == 0


def test_a_model_without_word_of_its_end_gets_the_tokenizers(run, tmp_path):
    save("llama", tmp_path / "model", vocab_size=260, eos_token_id=None, bos_token_id=None)
    (tmp_path / "model/generation_config.json").unlink()
    lay(tmp_path / "model", {"tokenizer_config.json": {"eos_token": "</s>"}}, template="<s> $A")
    assert run("convert", "--source", "model", "--output", "hf", "--format", "hf")[0] == 0
    named = {"bos_token_id": IDS["<s>"], "eos_token_id": IDS["</s>"]}
    assert json.loads(Path("hf/generation_config.json").read_text()) == named
    assert named.items() <= json.loads(Path("hf/config.json").read_text()).items()


def test_a_generation_config_that_lacks_the_end_is_kept_and_told(chat, run):
    (chat / "generation_config.json").write_text('{"eos_token_id": 65}')
    status, out, err = run("convert", "--source", chat, "--output", "hf", "--format", "hf")
    assert status == 0, err
    assert "generation_config.json, kept as it is, ends a text at id 65; the tokenizer's own end" in out
    assert Path("hf/generation_config.json").read_text() == '{"eos_token_id": 65}'


def test_a_file_linked_from_elsewhere_is_refused(chat, run, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (chat / "chat_template.jinja").unlink()
    (chat / "chat_template.jinja").symlink_to(tmp_path / "secret")
    status, _, err = run("convert", "--source", chat, "--output", "out")
    assert status == 1
    assert "'chat_template.jinja' lies outside the folder" in only_line(err)


def test_data_that_end_otherwise_than_the_model_are_refused(chat, run, text_folder, tmp_path):
    lay(tmp_path / "words", {"tokenizer_config.json": {"eos_token": "</s>"}}, template="<s> $A")
    status, _, err = run(*fit_from(chat, text_folder), "--data.tokenizer=words")
    assert status == 1
    same = "begin with id 256 and end with id"
    assert f"documents {same} 257, by the checkpoint's own files they {same} 259" in only_line(err)
