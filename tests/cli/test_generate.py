"""generate through the command line, on checkpoints of both formats."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import only_line
from foreign import save
from spoken import IDS, byte_tokenizer, chat_files, lay
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lightning_dar import generate as command
from lightning_dar import load_model
from lightning_dar.model.generate import generate
from lightning_dar.text.tokenizer import Tokenizer as OurTokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    save("llama", tmp_path / "model", vocab_size=258, eos_token_id=257)
    byte_tokenizer(("<s>", "</s>"), "<s> $A").save(str(tmp_path / "model/tokenizer.json"))
    return tmp_path / "model"


def expected(folder, prompt, steps, **options):
    ids = torch.tensor([[256, *OurTokenizer((folder / "tokenizer.json").read_text()).encode(prompt)]])
    produced = generate(load_model(folder), ids, steps, **options)[0, ids.shape[1] :].tolist()
    return OurTokenizer((folder / "tokenizer.json").read_text()).decode(produced)


@pytest.mark.parametrize("form", ["foreign", "lightning", "hf"])
def test_greedy_text_is_the_models_own(form, folder, run):
    path = folder
    if form != "foreign":
        args = ("--source", folder, "--output", "out", "--model.residual.name=delta-sublayer", "--format", form)
        assert run("convert", *args)[0] == 0
        path = "out"
    args = ("--prompt", "Once upon", "--max_new_tokens", "40", "--temperature", "0", "--device", "cpu", "--ignore_end")
    status, out, err = run("generate", "--ckpt_path", path, *args)
    assert status == 0, err
    assert out == expected(folder, "Once upon", 40, temperature=0) + "\n"


def test_sampling_follows_its_options_and_its_seed(folder, run):
    def sample(*args):
        options = ("--prompt", "x", "--max_new_tokens", "30", "--device", "cpu", "--ignore_end", *args)
        status, out, err = run("generate", "--ckpt_path", folder, *options)
        assert status == 0, err
        return out

    seeded = {"temperature": 0.9, "top_k": 20, "top_p": 0.95}
    args = [f"--{name}={value}" for name, value in seeded.items()]
    want = expected(folder, "x", 30, **seeded, generator=torch.Generator().manual_seed(3))
    assert sample(*args, "--seed=3") == want + "\n"
    assert sample(*args, "--seed=4") != want + "\n"


def test_prompts_from_a_file_and_from_stdin(folder, run, monkeypatch):
    greedy = ("--ckpt_path", folder, "--max_new_tokens=12", "--temperature=0", "--device=cpu", "--ignore_end")
    want = expected(folder, "Größe\n", 12, temperature=0) + "\n"
    Path("prompt.txt").write_text("Größe\n", encoding="utf-8")
    assert run("generate", *greedy, "--prompt_file", "prompt.txt")[1] == want
    monkeypatch.setattr("sys.stdin", io.StringIO("Größe\n"))
    assert run("generate", *greedy)[1] == want


def test_it_stops_where_the_model_ends_its_text(folder, run, monkeypatch):
    letters = OurTokenizer((folder / "tokenizer.json").read_text()).encode("ab")
    made = [torch.tensor([[number]]) for number in (*letters, 257, letters[0])]
    monkeypatch.setattr("lightning_dar.model.generate.generate_tokens", lambda *args, **options: iter(made))
    args = ("generate", "--ckpt_path", folder, "--prompt", "x", "--device", "cpu")
    assert run(*args)[1] == "ab\n"
    assert run(*args, "--ignore_end")[1] == "aba\n"


def test_every_end_of_the_model_ends_a_text(run, monkeypatch, tmp_path):
    """The tokenizer's, all of config.json's and all of generation_config.json's, also after training's own format."""
    save("llama", tmp_path / "chat", vocab_size=260, eos_token_id=[66, IDS["<s>"]])
    lay(tmp_path / "chat", chat_files())
    assert run("convert", "--source", "chat", "--output", "ours", "--model.residual.name=delta-sublayer")[0] == 0
    letter = OurTokenizer(Path("chat/tokenizer.json").read_text()).encode("a")[0]
    for path in ("chat", "ours"):
        for end in (66, *IDS.values()):
            made = [torch.tensor([[number]]) for number in (letter, end, letter)]
            monkeypatch.setattr("lightning_dar.model.generate.generate_tokens", lambda *_, made=made, **__: iter(made))
            assert run("generate", "--ckpt_path", path, "--prompt", "x", "--device", "cpu")[1] == "a\n"


BAD_PROMPTS = [
    ("Größe".encode("latin-1"), "not UTF-8 (byte 0xf6), in its line 1"),
    (b"one\ntwo\0", "a NUL character in the text, in its line 2"),
    ("Größe".encode("utf-16"), "UTF-16, where UTF-8 is needed"),
]


@pytest.mark.parametrize(("content", "says"), BAD_PROMPTS, ids=["latin-1", "NUL", "UTF-16"])
def test_a_prompt_that_is_no_text(content, says, folder, run, monkeypatch):
    Path("prompt.txt").write_bytes(content)
    status, _, err = run("generate", "--ckpt_path", folder, "--prompt_file", "prompt.txt")
    assert status == 2
    assert f"--prompt_file prompt.txt: {says}" in only_line(err)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    status, _, err = run("generate", "--ckpt_path", folder)
    assert status == 2
    assert f"stdin: {says}" in only_line(err)


def test_a_prompt_of_the_command_line_that_is_no_text(folder, run):
    status, _, err = run("generate", "--ckpt_path", folder, "--prompt", "caf\udce9")  # how Python passes on b"\xe9"
    assert status == 2
    assert "--prompt: a lone surrogate \\udce9 in the text" in only_line(err)


def test_text_streams_and_characters_of_several_tokens_stay_whole(folder):
    tokenizer = OurTokenizer((folder / "tokenizer.json").read_text())
    text = "Käse, 日本\nzweite Zeile 🎉 Ende"
    pieces = list(command._text(tokenizer, iter(tokenizer.encode(text)), set(), before=256))
    assert "".join(pieces) == text
    assert len(pieces) > 20
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_tokenizer_that_drops_the_first_space_keeps_it_here(folder):
    words = Tokenizer(models.WordLevel({"\u2581a": 0, "\u2581b": 1, "</s>": 2}, unk_token="</s>"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = OurTokenizer(words.to_str())
    assert tokenizer.decode([1, 0]) == "b a"
    assert "".join(command._text(tokenizer, iter([1, 0]), set(), before=0)) == " b a"


def test_the_first_piece_is_out_before_the_last_token_is_made(folder):
    tokenizer = OurTokenizer((folder / "tokenizer.json").read_text())
    made = []

    def tokens():
        for number in tokenizer.encode("abc"):
            made.append(number)
            yield number

    assert next(iter(command._text(tokenizer, tokens(), set(), before=256))) == "a"
    assert len(made) == 1


USAGE = [
    (["--prompt", "x", "--max_new_tokens", "0"], "--max_new_tokens 0: must be finite and at least 1"),
    (["--prompt", "x", "--temperature", "-1"], "--temperature -1.0: must be finite and at least 0"),
    (["--prompt", "x", "--top_k", "0"], "--top_k 0"),
    (["--prompt", "x", "--top_p", "1.5"], "--top_p 1.5: must be above 0 and at most 1"),
    (["--prompt", "x", "--prompt_file", "y"], "--prompt and --prompt_file"),
    (["--prompt_file", "nowhere.txt"], "--prompt_file nowhere.txt: cannot be read"),
    (["--prompt", "x", "--device", "abacus"], "--device abacus: not usable here"),
    (["--prompt", "x", "--ckpt_path", "nowhere"], "'nowhere' does not exist"),
]


@pytest.mark.parametrize(("args", "says"), USAGE, ids=[" ".join(args) for args, _ in USAGE])
def test_usage(args, says, folder, run):
    status, _, err = run("generate", "--ckpt_path", folder, *args)
    assert status == 2
    assert says in only_line(err)


def test_a_model_without_a_tokenizer_says_what_is_missing(folder, run):
    (folder / "tokenizer.json").unlink()
    status, _, err = run("generate", "--ckpt_path", folder, "--prompt", "x")
    assert status == 1
    assert "has no tokenizer.json; lay the model's own beside its weights" in only_line(err)


def test_a_trained_checkpoint_needs_no_model_flags(fit, run):
    fit("--data.tokenizer=bpe:300", "--data.dir=bpe_shards")
    args = ("--prompt", "tan", "--max_new_tokens=8", "--temperature=0", "--ignore_end")
    status, out, err = run("generate", "--ckpt_path", "runs/test/version_0/checkpoints/last.ckpt", *args)
    assert status == 0, err
    assert len(out.strip()) > 3


def test_neither_command_loads_lightning():
    parsers = "from lightning_dar.cli import TOOLS, tool; [tool(name).make_parser() for name in TOOLS]"
    code = f"import sys; {parsers}; print('lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
