"""Where texts begin and end, by a model's own files. The truth is AutoTokenizer's, given the same folder."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from spoken import IDS, byte_tokenizer, lay
from tokenizers import processors
from transformers import AutoTokenizer

from lightning_dar.errors import DataError
from lightning_dar.text.folders import Mix
from lightning_dar.text.manifest import Request, open_folder, read_tokenizer
from lightning_dar.text.pieces import Part
from lightning_dar.text.prepare import merge, prepare
from lightning_dar.text.tokenizer import Tokenizer, load_tokenizer

CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"
TURN = {"__type": "AddedToken", "content": "<end_of_turn>", "lstrip": False, "normalized": False, "special": True}
BY_TOKENIZER = {
    "named": {CONFIG: {"eos_token": "</s>"}},
    "a dict": {CONFIG: {"eos_token": TURN}},
    "another than config.json's": {CONFIG: {"eos_token": "</s>"}, "config.json": {"eos_token_id": IDS["<s>"]}},
    "not by config.json's id that is none": {CONFIG: {"eos_token": "</s>"}, "config.json": {"eos_token_id": 9999}},
    "by the map": {MAP: {"eos_token": "<end_of_turn>"}},
    "by the map before the config": {CONFIG: {"eos_token": "</s>"}, MAP: {"eos_token": TURN}},
    "by a config that knows its tokens": {
        CONFIG: {"eos_token": "</s>", "added_tokens_decoder": {}},
        MAP: {"eos_token": "<end_of_turn>"},
    },
}
BY_MODEL = {
    "null": ({CONFIG: {"eos_token": None}, "config.json": {"eos_token_id": IDS["</s>"]}}, "</s>"),
    "config.json": ({"config.json": {"eos_token_id": IDS["<end_of_turn>"]}}, "<end_of_turn>"),
    "the first of a list": ({"config.json": {"eos_token_id": [IDS["</s>"], IDS["<s>"]]}}, "</s>"),
    "config.json before generation_config.json": (
        {"config.json": {"eos_token_id": IDS["</s>"]}, "generation_config.json": {"eos_token_id": IDS["<s>"]}},
        "</s>",
    ),
    "generation_config.json": ({CONFIG: {}, "generation_config.json": {"eos_token_id": IDS["</s>"]}}, "</s>"),
    "nothing": ({CONFIG: {}, "config.json": {"eos_token_id": None}}, "<|endoftext|>"),
}


@pytest.mark.parametrize("files", BY_TOKENIZER.values(), ids=BY_TOKENIZER)
def test_the_end_token_is_the_one_of_transformers(files, tmp_path):
    lay(tmp_path, {CONFIG: {}, **files})
    wanted = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.end_id == wanted.eos_token_id == IDS[wanted.eos_token]
    assert load_tokenizer(str(tmp_path / "tokenizer.json")).identity == tokenizer.identity


@pytest.mark.parametrize(("files", "end"), BY_MODEL.values(), ids=BY_MODEL)
def test_where_the_tokenizer_does_not_say_the_model_does(files, end, tmp_path):
    tokenizer = load_tokenizer(str(lay(tmp_path / "model", files)))
    assert tokenizer.end_id == IDS[end]
    tokenizer.save(tmp_path / "copy")
    assert load_tokenizer(str(tmp_path / "copy")).identity == tokenizer.identity
    assert not (tmp_path / "copy/config.json").exists()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({CONFIG: {"eos_token": "<eot>"}}, "tokenizer_config.json: eos_token '<eot>' is not a token of tokenizer.json"),
        ({MAP: {"eos_token": "<eot>"}}, "special_tokens_map.json: eos_token '<eot>' is not a token"),
        ({CONFIG: {"eos_token": ["</s>"]}}, r"tokenizer_config.json: eos_token \['</s>'\] is no token"),
        ({"config.json": {"eos_token_id": [260, 257]}}, "config.json: eos_token_id 260 is not an id of tokenizer.json"),
        ({"generation_config.json": {"eos_token_id": -1}}, "generation_config.json: eos_token_id -1 is not an id"),
        ({CONFIG: "{"}, "tokenizer_config.json: not JSON"),
        ({CONFIG: [1]}, "tokenizer_config.json: a JSON object is needed"),
        ({}, r"without an end token \(name it in tokenizer_config.json beside it, such as {\"eos_token\": \"<end>\"}"),
    ],
)
def test_what_cannot_be_an_end_is_one_line(files, says, tmp_path):
    lay(tmp_path, files, special=("<s>", "<end_of_turn>"))
    with pytest.raises(DataError, match=f"data.tokenizer: .*{says}"):
        load_tokenizer(str(tmp_path))


def test_an_end_that_nothing_names_can_be_named(tmp_path):
    lay(tmp_path, {}, special=("<end_of_turn>",))
    tokenizer = Tokenizer((tmp_path / "tokenizer.json").read_text())
    assert tokenizer.decode(tokenizer.encode_prompt("it reads and writes")) == "it reads and writes"
    with pytest.raises(DataError, match="without an end token"):
        _ = tokenizer.end_id
    (tmp_path / CONFIG).write_text('{"eos_token": "<end_of_turn>"}')
    assert load_tokenizer(str(tmp_path)).end_id == 256


TEMPLATES = [None, "$A", "<s> $A", "$A </s>", "<s> $A </s>", "<s> <end_of_turn> $A </s>", "<s> $A <end_of_turn>"]
DOCUMENTS = {"a": "first text\n", "b": "ünï", "c": "third <s> as text", "d": "4"}


@pytest.fixture
def request_(tmp_path):
    (tmp_path / "source").mkdir()
    for name, text in DOCUMENTS.items():
        (tmp_path / "source" / f"{name}.txt").write_text(text)
    return Request(source=(str(tmp_path / "source"),), text_field="text", tokenizer="", val_fraction=0.4)


def ids_in(folder):
    """Of train and val, straight from the shard files; their header is uint32: items, items + 1 offsets."""
    for path in sorted(folder.glob("*/*.bin")):
        raw = path.read_bytes()
        yield from np.frombuffer(raw[4 * (int(np.frombuffer(raw, np.uint32, 1)[0]) + 2) :], np.uint16).tolist()


@pytest.mark.parametrize("add", [None, True, False], ids=["", "add", "do not add"])
@pytest.mark.parametrize("template", TEMPLATES, ids=str)
def test_documents_are_encoded_as_transformers_does(template, add, request_, tmp_path):
    """`add_bos_token` counts in transformers only where there is no tokenizer.json."""
    added = {} if add is None else {"add_bos_token": add, "add_eos_token": add}
    config = {"bos_token": "<s>", "eos_token": "</s>", **added}
    folder = lay(tmp_path / "model", {CONFIG: config}, template=template)
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(str(folder))
    for text in ("some text", "ünï", "x"):
        wanted = theirs(text).input_ids
        end = [] if IDS["</s>"] in wanted else [IDS["</s>"]]
        assert ours.document(ours.encode(text)) == [*wanted, *end]
        prompt = ours.encode_prompt(text)
        assert wanted[: len(prompt)] == prompt
        assert ours.document(ours.encode(text))[: len(prompt)] == prompt, "documents start as prompts do"
        assert not set(wanted[len(prompt) :]) - set(IDS.values()), "a prompt is not ended"


BYTES = processors.ByteLevel(trim_offsets=False)
BEGIN = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", IDS["<s>"])])
PROCESSORS = {
    "llama 3": processors.Sequence([BYTES, BEGIN]),
    "roberta": processors.RobertaProcessing(("</s>", IDS["</s>"]), ("<s>", IDS["<s>"])),
    "bert": processors.BertProcessing(("</s>", IDS["</s>"]), ("<s>", IDS["<s>"])),
    "bytes": BYTES,
}


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
def test_any_post_processor(processor, tmp_path):
    folder = lay(tmp_path, {CONFIG: {"eos_token": "</s>"}})
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = processor
    tokenizer.save(str(folder / "tokenizer.json"))
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(str(folder))
    wanted = theirs("some text").input_ids
    assert ours.document(ours.encode("some text")) == wanted + [257] * (257 not in wanted)


def test_prepared_documents_begin_and_end_so(request_, tmp_path):
    folder = lay(tmp_path / "model", {CONFIG: {"eos_token": "</s>"}}, template="<s> $A </s>")
    theirs = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    asked = replace(request_, tokenizer=str(folder))
    manifest = prepare(asked, tmp_path / "out", 1)
    ids = list(ids_in(tmp_path / "out"))
    pieces = [theirs(text).input_ids for text in DOCUMENTS.values()]
    assert sorted(ids) == sorted(number for piece in pieces for number in piece)
    assert all(str(piece)[1:-1] in str(ids) for piece in pieces)
    assert (ids.count(256), ids.count(257)) == (4, 4)
    assert manifest["train"]["documents"] + manifest["val"]["documents"] == 4
    assert (manifest["tokenizer"]["begin_ids"], manifest["tokenizer"]["closing_ids"]) == ([256], [257])
    prepare(asked, tmp_path / "parts", 1, Part(1, 1))
    assert merge(asked, tmp_path / "parts", 1) == manifest
    assert read_tokenizer(tmp_path / "parts", manifest).identity == load_tokenizer(str(folder)).identity


def test_a_long_document_begins_once_in_either_split(request_, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_dar.text.pieces.PIECE_CHARS", 40)
    (tmp_path / "source/long.txt").write_text("".join(f"line {number} of many\n" for number in range(99)))
    folder = lay(tmp_path / "model", {CONFIG: {"eos_token": "</s>"}}, template="<s> $A")
    prepare(replace(request_, tokenizer=str(folder)), tmp_path / "out", 1)
    ids = list(ids_in(tmp_path / "out"))
    assert ids[0] == 256
    assert ids[-1] == 257
    assert 4 < ids.count(256) == ids.count(257) < 60
    assert all(after == 256 for before, after in pairwise(ids) if before == 257)


def test_folders_of_another_rule_are_never_mixed_in(request_, tmp_path):
    files = {CONFIG: {"eos_token": "</s>"}}
    folder = lay(tmp_path / "model", files, template="<s> $A")
    asked = replace(request_, tokenizer=str(folder))
    prepare(asked, tmp_path / "new", 1)
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    manifest = json.loads((tmp_path / "old/manifest.json").read_text())
    del manifest["tokenizer"]["begin_ids"], manifest["tokenizer"]["closing_ids"]
    (tmp_path / "old/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="has .* documents end with id 257, asked for .* begin with id 256 and end"):
        prepare(asked, tmp_path / "old", 1)
    with pytest.raises(DataError, match="old: its documents end with id 257, by its .* they begin with id 256 and end"):
        read_tokenizer(tmp_path / "old", open_folder(tmp_path / "old"))
    (tmp_path / "model" / CONFIG).write_text('{"eos_token": "<end_of_turn>"}')
    with pytest.raises(DataError, match="begin with id 256 and end with id 257, asked for .* end with id 259"):
        prepare(asked, tmp_path / "new", 1)
    prepare(asked, tmp_path / "turns", 1)
    sets = {name: {"source": str(tmp_path / name), "weight": 1.0} for name in ("new", "turns")}
    with pytest.raises(DataError, match=r"data.mix.turns: another tokenizer than that of new"):
        Mix(sets, 1)


def test_a_folder_of_before_is_used_where_the_rule_is_the_same(request_, tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    asked = replace(request_, tokenizer=str(tmp_path / "tokenizer.json"))
    prepare(asked, tmp_path / "out", 1)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    del manifest["tokenizer"]["begin_ids"], manifest["tokenizer"]["closing_ids"]
    (tmp_path / "out/manifest.json").write_text(json.dumps(manifest))
    assert prepare(asked, tmp_path / "out", 1)["end_id"] == IDS["<|endoftext|>"]
    assert read_tokenizer(tmp_path / "out", manifest).begin_ids == ()
