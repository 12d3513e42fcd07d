import pytest

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text.tokenizer import Tokenizer, bpe_size, check_spec, load_tokenizer, train_bpe

TEXTS = ["the cat sat on the mat\n" * 20, "def f(x):\n    return x\n" * 20, "naïve 東京 🙂 \t\x00"]


def test_bytes_are_the_bytes_of_the_text():
    tokenizer = load_tokenizer("bytes")
    assert (tokenizer.vocab_size, tokenizer.end_id) == (257, 256)
    assert tokenizer.encode("é!") == [0xC3, 0xA9, 0x21]
    assert tokenizer.decode([0xC3, 0xA9, 256, 0x21]) == "é!"


@pytest.mark.parametrize("make", [lambda: load_tokenizer("bytes"), lambda: train_bpe(300, TEXTS)], ids=["bytes", "bpe"])
def test_decode_inverts_encode_and_json_carries_the_tokenizer(make):
    tokenizer = make()
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.hash == tokenizer.hash
    for text in [*TEXTS, "unseen ЖZ  \r\n two  spaces", " leading", "an <|endoftext|> inside", ""]:
        ids = tokenizer.encode(text)
        assert tokenizer.end_id not in ids
        assert max(ids, default=0) < tokenizer.vocab_size
        assert again.decode(again.encode(text)) == tokenizer.decode([*ids, tokenizer.end_id]) == text
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


def test_bpe_has_the_size_asked_for_and_merges_what_is_frequent():
    tokenizer = train_bpe(280, TEXTS)
    assert tokenizer.vocab_size == 280
    assert tokenizer.end_id == 0
    assert len(tokenizer.encode("the")) == 1


def test_bpe_is_deterministic():
    # The library seeds every hash table anew, so that runs in one process differ as processes do.
    assert len({train_bpe(300, TEXTS).hash for _ in range(5)}) == 1


@pytest.mark.parametrize("spec", ["bpe:abc", "bpe:10", "bpe:256", "bpe:", "bpe", "words", "bpe:-5"])
def test_bad_specs_are_refused(spec):
    with pytest.raises(UsageError, match=f"data.tokenizer: '{spec}'"):
        check_spec(spec)


def test_good_specs_pass(tmp_path):
    (tmp_path / "model").mkdir()
    for spec in ("bytes", "bpe:257", "somewhere/tokenizer.json", str(tmp_path / "model")):
        check_spec(spec)
    assert bpe_size("bpe:257") == 257


def make_file(path, end_token, post_process=False):
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if end_token:
        backend.add_special_tokens([end_token])
    if post_process:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"$A {end_token}", special_tokens=[(end_token, 3)]
        )
        backend.enable_truncation(2)
        backend.enable_padding(length=8)
    backend.save(str(path))
    return str(path)


def test_a_file_is_read_without_its_own_special_tokens_padding_and_truncation(tmp_path):
    tokenizer = load_tokenizer(make_file(tmp_path / "tokenizer.json", "</s>", post_process=True))
    assert (tokenizer.vocab_size, tokenizer.end_id) == (4, 3)
    assert tokenizer.encode("a b a b") == [1, 2, 1, 2]
    assert load_tokenizer(str(tmp_path)).hash == tokenizer.hash


def test_files_that_are_no_usable_tokenizer_are_named(tmp_path):
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "text.json").write_text("no json")
    make_file(tmp_path / "endless.json", None)
    for name, complaint in [
        ("empty.json", "not a tokenizer"),
        ("text.json", "not a tokenizer"),
        ("endless.json", r"without an end token .*</s>"),
        ("missing.json", "No such file"),
    ]:
        with pytest.raises(DataError, match=f"{name}.*{complaint}"):
            load_tokenizer(str(tmp_path / name))
