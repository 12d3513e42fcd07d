import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lightning_dar.errors import DataError
from lightning_dar.text.manifest import Request, open_folder, open_prepared, read_tokenizer
from lightning_dar.text.pieces import read_pieces
from lightning_dar.text.prepare import prepare
from lightning_dar.text.sources import find_files

END = 256


@pytest.fixture
def request_(corpus):
    return Request(source=(str(corpus),), text_field="text", tokenizer="bytes", val_fraction=0.2)


def read_tokens(directory, split):
    """The ids of a split straight from the shard files; their header is uint32: items, items + 1 offsets."""
    manifest = json.loads((directory / "manifest.json").read_text())
    tokens = []
    for chunk in json.loads((directory / split / "index.json").read_text())["chunks"]:
        raw = (directory / split / chunk["filename"]).read_bytes()
        items = int(np.frombuffer(raw, np.uint32, 1)[0])
        tokens.append(np.frombuffer(raw[4 * (items + 2) :], manifest["token_dtype"]))
    return np.concatenate(tokens)


def expected_streams(corpus, val_fraction):
    """Both splits, from the rule: split by the hash of the text, an end token wherever text breaks off."""
    streams = {"train": [], "val": []}
    for file in find_files([str(corpus)]):
        pieces = list(read_pieces(file, "text"))
        draws = [hashlib.blake2b(p.text.encode(), digest_size=8).hexdigest() for p in pieces]
        splits = ["val" if int(draw, 16) < val_fraction * 2**64 else "train" for draw in draws]
        for i, piece in enumerate(pieces):
            goes_on = not piece.ends_document and splits[i + 1] == splits[i]
            streams[splits[i]] += [*piece.text.encode(), *([] if goes_on else [END])]
    return streams


def test_shards_hold_every_document_once_and_the_manifest_counts_them(corpus, prepared):
    manifest = json.loads((prepared / "manifest.json").read_text())
    for split, expected in expected_streams(corpus, 0.2).items():
        tokens = read_tokens(prepared, split)
        assert tokens.tolist() == expected
        assert manifest[split]["tokens"] == len(expected)
        assert manifest[split]["documents"] == expected.count(END)
        assert manifest[split]["text_bytes"] == len(expected) - expected.count(END)
    assert manifest["files"] == 242
    assert (manifest["vocab_size"], manifest["end_id"], manifest["token_dtype"]) == (257, END, "uint16")
    total = sum(manifest[split]["text_bytes"] for split in ("train", "val"))
    files = [path for path in corpus.iterdir() if path.suffix != ".jsonl"]
    assert total == sum(path.stat().st_size for path in files) + len("a row" + "another row")


def test_split_takes_about_its_fraction_and_new_documents_move_no_other(corpus, prepared, request_, tmp_path):
    shutil.copytree(corpus, tmp_path / "more")
    for i in range(50):
        (tmp_path / "more" / f"{i:03}-new.txt").write_text(f"a new document {i}")
    prepare(replace(request_, source=(str(tmp_path / "more"),)), tmp_path / "out", num_workers=1)
    for split in ("train", "val"):
        documents, more = (bytes_of_documents(folder, split) for folder in (prepared, tmp_path / "out"))
        assert documents < more
    assert 0.1 < len(bytes_of_documents(prepared, "val")) / 242 < 0.3


def bytes_of_documents(directory, split):
    tokens = read_tokens(directory, split)
    return {part.tobytes() for part in np.split(tokens, np.flatnonzero(tokens == END) + 1)}


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_shards_do_not_depend_on_the_number_of_workers(request_, tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr("lightning_dar.text.encode._BATCH_CHARS", 2000)
    for workers in (1, 2, 5):
        prepare(replace(request_, tokenizer=tokenizer), tmp_path / str(workers), num_workers=workers)
    files = sorted(path.relative_to(tmp_path / "1") for path in (tmp_path / "1").rglob("chunk-*.bin"))
    assert len(files) == 2
    for name in [*files, "tokenizer.json", "manifest.json"]:
        assert len({(tmp_path / workers / name).read_bytes() for workers in "125"}) == 1


def test_bpe_shards_decode_to_the_documents(corpus, request_, tmp_path):
    manifest = prepare(replace(request_, tokenizer="bpe:300"), tmp_path / "out", num_workers=2)
    tokenizer = read_tokenizer(tmp_path / "out", manifest)
    expected = bytes(i for i in expected_streams(corpus, 0.2)["val"] if i != END).decode()
    assert tokenizer.decode(read_tokens(tmp_path / "out", "val").tolist()) == expected


def test_a_large_vocabulary_is_stored_as_int32(request_, tmp_path):
    import tokenizers

    words = {f"w{i}": i for i in range(70_000)} | {"document": 70_000, "</s>": 70_001}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    request = replace(request_, tokenizer=str(tmp_path / "tokenizer.json"))
    manifest = prepare(request, tmp_path / "out", num_workers=1)
    assert manifest["token_dtype"] == "int32"
    tokens = read_tokens(tmp_path / "out", "train")
    assert tokens.dtype == np.int32
    assert set(tokens.tolist()) == {0, 70_000, 70_001}


def test_a_second_call_reuses_the_folder_and_another_request_is_refused(corpus, prepared, request_, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
    assert prepare(request_, prepared, num_workers=1)["files"] == 242
    shutil.copytree(corpus, tmp_path / "copy")
    open_prepared(prepared, replace(request_, source=(str(tmp_path / "copy"),)))
    (tmp_path / "copy" / "000.txt").write_text("changed")
    for changes, complaint in [
        ({"tokenizer": "bpe:300"}, "data.tokenizer: the folder has bytes, asked for bpe:300"),
        ({"val_fraction": 0.5}, r"data.val_fraction: the folder has 0.2, asked for 0.5"),
        ({"text_field": "body"}, "data.text_field: the folder has text, asked for body"),
        ({"source": (str(tmp_path / "copy"),)}, "data.source: the folder has .*corpus.*, asked for .*copy"),
        (
            {"tokenizer": "bpe:300", "val_fraction": 0.5},
            "data.tokenizer.*data.val_fraction.*another data.dir",
        ),
    ]:
        with pytest.raises(DataError, match=complaint):
            prepare(replace(request_, **changes), prepared, num_workers=1)
    assert before == {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}


def test_a_folder_that_is_not_ours_is_never_touched(request_, tmp_path):
    (tmp_path / "thesis.doc").write_text("precious")
    with pytest.raises(DataError, match=r"has no manifest\.json"):
        prepare(request_, tmp_path, num_workers=1)
    assert (tmp_path / "thesis.doc").read_text() == "precious"
    with pytest.raises(DataError, match=r"thesis\.doc"):
        prepare(request_, tmp_path / "thesis.doc", num_workers=1)


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs a folder that even root cannot write to")
def test_a_folder_that_cannot_be_written_is_refused_at_once(request_):
    with pytest.raises(DataError, match=r"data\.dir: cannot prepare /proc/shards"):
        prepare(request_, Path("/proc/shards"), num_workers=1)


def test_damaged_shards_are_named(prepared, tmp_path):
    def damaged(name, change):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(prepared, copy)
        change(copy / name)
        return copy

    for name, change in [
        ("train/chunk-0-0.bin", lambda path: os.truncate(path, path.stat().st_size - 1)),
        ("val/chunk-0-0.bin", lambda path: path.unlink()),
        ("train/index.json", lambda path: os.truncate(path, path.stat().st_size // 2)),
        ("val/index.json", lambda path: path.write_text('{"chunks": []}')),
        ("manifest.json", lambda path: os.truncate(path, 40)),
    ]:
        with pytest.raises(DataError, match=name):
            open_folder(damaged(name, change))


def test_an_exchanged_tokenizer_is_noticed(prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "copy")
    (tmp_path / "copy" / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path / "copy", open_folder(tmp_path / "copy"))


def test_an_error_leaves_nothing_behind(request_, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"text": "good"}\n{oops\n')
    request = replace(request_, source=(*request_.source, str(tmp_path / "bad.jsonl")))
    with pytest.raises(DataError, match=r"bad\.jsonl:2: not JSON"):
        prepare(request, tmp_path / "out", num_workers=2)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_empty_text_and_empty_splits_are_refused(request_, tmp_path):
    (tmp_path / "a.txt").write_text(" \n")
    request = replace(request_, source=(str(tmp_path / "a.txt"),))
    with pytest.raises(DataError, match="no text in the 1 file"):
        prepare(request, tmp_path / "out", num_workers=1)
    (tmp_path / "a.txt").write_text("a single document")
    with pytest.raises(DataError, match=r"data\.val_fraction: 1e-09 leaves the val split empty .*raise it"):
        prepare(replace(request, val_fraction=1e-9), tmp_path / "out", num_workers=1)
    with pytest.raises(DataError, match=r"leaves the train split empty .*lower it"):
        prepare(replace(request, val_fraction=1 - 1e-9), tmp_path / "out", num_workers=1)


def test_one_long_file_is_enough(tmp_path):
    text = "".join(f"{i} bottles\n" for i in range(100_000))
    (tmp_path / "book.txt").write_text(text)
    request = Request(source=(str(tmp_path / "book.txt"),), text_field="text", tokenizer="bytes", val_fraction=0.3)
    manifest = prepare(request, tmp_path / "out", num_workers=1)
    assert 0.05 < manifest["val"]["text_bytes"] / len(text) < 0.6
    assert manifest["train"]["text_bytes"] + manifest["val"]["text_bytes"] == len(text)


@pytest.mark.filterwarnings("ignore:An item was larger than the target chunk size")
def test_memory_does_not_grow_with_the_source(tmp_path, monkeypatch):
    """With batches and chunks of a tenth of a MB, some of which are held."""
    monkeypatch.setattr("lightning_dar.text.encode._BATCH_CHARS", 2**16)
    monkeypatch.setattr("lightning_dar.text.encode._CHUNK_BYTES", 2**17)

    def prepared(rows: int) -> int:
        """Tokens."""
        with (tmp_path / f"{rows}.jsonl").open("w") as file:
            for row in range(rows):
                file.write(json.dumps({"text": f"document {row % 2} " * 200}) + "\n")
        source = str(tmp_path / f"{rows}.jsonl")
        request = Request(source=(source,), text_field="text", tokenizer="bytes", val_fraction=0.3)
        manifest = prepare(request, tmp_path / str(rows), num_workers=1)
        return sum(manifest[split]["tokens"] for split in ("train", "val"))

    prepared(10)  # imports, which are slow when traced
    tracemalloc.start()
    tokens = prepared(4000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tokens > 8_000_000
    assert peak < 5_000_000


def test_a_killed_preparation_is_not_taken_for_complete(request_, tmp_path):
    directory = tmp_path / "out"
    code = (
        "import time, pathlib\n"
        "from lightning_dar.text import prepare\n"
        "from lightning_dar.text.manifest import Request\n"
        "prepare.check_not_empty = lambda *_: time.sleep(600)\n"  # every batch is written by then
        f"prepare.prepare({request_!r}, pathlib.Path({str(directory)!r}), 2)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / ".out.partial" / "val").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert (tmp_path / ".out.partial").exists()
    assert not directory.exists()
    assert prepare(request_, directory, num_workers=2)["files"] == 242
    assert not (tmp_path / ".out.partial").exists()
    assert open_folder(directory)["files"] == 242
