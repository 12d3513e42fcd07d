"""What is no text is treated alike in every format: left out and counted by kind, or refused by place."""

import codecs
import gzip
import json
from dataclasses import replace

import pyarrow
import pytest
from pyarrow import parquet

from lightning_dar.errors import DataError
from lightning_dar.text.bad_text import BadText
from lightning_dar.text.manifest import Request
from lightning_dar.text.pieces import PIECE_CHARS, Part, read_pieces
from lightning_dar.text.prepare import merge, prepare
from lightning_dar.text.sources import find_files

GOOD = "some text, é\n"
BAD = {  # content -> kind, and what is said of it
    "empty": (b"", "empty", "the text is empty"),
    "blank": (b" \n\t\n", "empty", "the text is empty"),
    "mark alone": (codecs.BOM_UTF8, "empty", "the text is empty"),
    "latin-1": ("café".encode("latin-1") + b" noir", "not UTF-8", r"not UTF-8 \(byte 0xe9\)"),
    "cut character": (GOOD.encode() + "é".encode()[:1], "not UTF-8", r"not UTF-8 \(byte 0xc3\)"),
    "surrogate in bytes": (b"a \xed\xa0\x80 b", "not UTF-8", r"not UTF-8 \(byte 0xed\)"),
    "NUL": (b"a\0b", "with NUL characters", "a NUL character"),
    "UTF-16": (GOOD.encode("utf-16"), "in UTF-16", "UTF-16, where UTF-8 is needed"),
    "UTF-16 BE": (codecs.BOM_UTF16_BE + GOOD.encode("utf-16-be"), "in UTF-16", "UTF-16, where"),
    "UTF-32": (GOOD.encode("utf-32"), "in UTF-32", "UTF-32, where UTF-8 is needed"),
}
BAD_JSON = {  # what only JSON can say
    "null": ('{"text": null}', "null", "the text is null"),
    "blank": ('{"text": " "}', "empty", "the text is empty"),
    "number": ('{"text": 7}', "not a string", "the text must be a string, got int"),
    "list": ('{"text": ["a"]}', "not a string", "the text must be a string, got list"),
    "surrogate": (r'{"text": "a \ud800 b"}', "with lone surrogates", r"a lone surrogate \\ud800"),
    "NUL": (r'{"text": "a\u0000b"}', "with NUL characters", "a NUL character"),
    "no object": ("[1, 2]", "not a JSON object", "a JSON object is needed, got list"),
    "no field": ('{"body": "x", "id": 1}', "without the text field", "no field 'text' .*there is body, id"),
}


def strings(values, kind=pyarrow.string()):
    """A column of these bytes, valid or not."""
    column = pyarrow.array(values, pyarrow.binary() if kind == pyarrow.string() else pyarrow.large_binary())
    return pyarrow.Array.from_buffers(kind, len(values), column.buffers())


def read(path, on_bad_text="skip"):
    bad, texts = BadText(on_bad_text), [""]
    for file in find_files([str(path)]):
        for piece in read_pieces(file, "text", bad=bad):
            texts[-1] += piece.text
            if piece.ends_document:
                texts.append("")
    assert texts.pop() == ""
    return texts, dict(bad.counts)


@pytest.mark.parametrize(("content", "kind", "says"), BAD.values(), ids=BAD)
def test_the_same_bytes_in_every_format(content, kind, says, tmp_path):
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.md").write_bytes(content)
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(content))
    parquet.write_table(pyarrow.table({"text": strings([content])}), tmp_path / "d.parquet")
    assert read(tmp_path) == ([], {kind: 4})
    for name, place in (("a.txt", r"a\.txt:\d"), ("c.txt.gz", r"c\.txt\.gz:\d"), ("d.parquet", r"d\.parquet: row 1")):
        with pytest.raises(DataError, match=f"{place}: {says}.*data.bad_text skip"):
            read(tmp_path / name, "refuse")


@pytest.mark.parametrize(("line", "kind", "says"), BAD_JSON.values(), ids=BAD_JSON)
def test_a_line_of_json_without_text(line, kind, says, tmp_path):
    good = json.dumps({"text": GOOD}, ensure_ascii=False)
    lines = f"{good}\n\n{line}\n{good}\n".encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    assert read(tmp_path) == ([GOOD] * 4, {kind: 2})
    for name in ("a.jsonl", "b.jsonl.gz"):
        with pytest.raises(DataError, match=f"{name}:3: {says}"):
            read(tmp_path / name, "refuse")


def test_lines_of_json_that_are_not_utf_8(tmp_path):
    good = json.dumps({"text": GOOD}).encode()
    latin = '{"text": "café"}'.encode("latin-1")
    (tmp_path / "a.jsonl").write_bytes(codecs.BOM_UTF8 + good + b"\n" + latin + b"\n" + codecs.BOM_UTF8 + good + b"\n")
    assert read(tmp_path) == ([GOOD] * 2, {"not UTF-8": 1})
    for encoding in ("utf-16", "utf-32"):
        (tmp_path / "a.jsonl").write_bytes(f'{{"text": "{"a" * 50}"}}\n'.encode(encoding) * 9)
        (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
        assert read(tmp_path) == ([], {f"in {encoding.upper()}": 2}), "a file each"
        with pytest.raises(DataError, match=f"a.jsonl: {encoding.upper()}, where UTF-8 is needed"):
            read(tmp_path / "a.jsonl", "refuse")


def test_rows_of_parquet_that_are_no_text(tmp_path):
    values = [GOOD.encode(), None, b"", b"\xff", codecs.BOM_UTF8 + GOOD.encode()]
    for kind in (pyarrow.string(), pyarrow.large_string()):
        table = pyarrow.table({"text": strings(values, kind)})
        parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
        assert read(tmp_path) == ([GOOD, GOOD], {"null": 1, "empty": 1, "not UTF-8": 1})
    with pytest.raises(DataError, match=r"a.parquet: row 2: the text is null"):
        read(tmp_path, "refuse")
    dictionary = pyarrow.table({"text": pyarrow.array(["a", None, "a"]).dictionary_encode()})
    parquet.write_table(dictionary, tmp_path / "a.parquet")
    assert read(tmp_path) == (["a", "a"], {"null": 1})
    parquet.write_table(pyarrow.table({"text": pyarrow.nulls(3)}), tmp_path / "a.parquet")
    assert read(tmp_path) == ([], {"null": 3})


@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_a_long_file_is_text_to_its_end_or_left_out_whole(ending, tmp_path):
    """No piece of it may have gone out before the bad byte is reached."""
    text = "".join(f"line {number}, é\n" for number in range(150_000))
    assert len(text.encode()) > 2**20 + 2 * PIECE_CHARS

    def write(content):
        (tmp_path / f"a.{ending}").write_bytes(gzip.compress(content, 1) if ending == "txt.gz" else content)

    write(codecs.BOM_UTF8 + text.encode())
    assert read(tmp_path) == ([text], {})
    for tail, kind in ((b"\xff\n", "not UTF-8"), (b"\0", "with NUL characters"), (b"\xc3", "not UTF-8")):
        write(text.encode() + tail)
        assert read(tmp_path) == ([], {kind: 1})
        with pytest.raises(DataError, match=rf"a\.{ending}:150001: "):
            read(tmp_path, "refuse")
    write(b" \n" * 2**20)
    assert read(tmp_path) == ([], {"empty": 1})


def fill(folder):
    """A .jsonl that is cut, and some files; returns the bad documents in them by kind."""
    folder.mkdir()
    lines = [json.dumps({"text": f"document {number} " * 9}) for number in range(400)]
    lines[::40] = ['{"text": null}'] * 5 + [r'{"text": "\ud800"}'] * 5
    (folder / "rows.jsonl").write_text("\n".join(lines))
    for number in range(10):
        (folder / f"{number}.txt").write_bytes(b"\xff" if number % 2 else b"")
        (folder / f"{number}.jsonl").write_bytes(f'{{"text": "{number}"}}\n'.encode("utf-16"))
        (folder / f"{number}.md").write_text(f"good {number}")
        parquet.write_table(pyarrow.table({"text": [None, f"row {number}"]}), folder / f"{number}.parquet")
    return {"empty": 5, "in UTF-16": 10, "not UTF-8": 5, "null": 15, "with lone surrogates": 5}


def test_preparation_counts_over_all_parts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("lightning_dar.text.pieces.UNIT_BYTES", 20_000)
    counts = fill(tmp_path / "source")
    kinds = "5 empty, 10 in UTF-16, 5 not UTF-8, 15 null, 5 with lone surrogates"
    said = f"left out 40 document(s) that are no text: {kinds}"
    request = Request(source=(str(tmp_path / "source"),), text_field="text", tokenizer="bpe:300", val_fraction=0.2)
    whole = prepare(request, tmp_path / "whole", 2)
    assert whole["left_out"] == counts
    assert capsys.readouterr().err.count(said) == 1
    for number in (1, 2):
        prepare(request, tmp_path / "parts", 1, Part(number, 2))
    capsys.readouterr()
    assert merge(request, tmp_path / "parts", 2) == whole
    assert capsys.readouterr().err.count(said) == 1
    assert whole["train"]["documents"] + whole["val"]["documents"] == 410

    refusing = replace(request, bad_text="refuse")
    for directory in ("whole", "parts"):
        with pytest.raises(DataError, match="data.bad_text: refuse is asked for; the folder left out 40 document"):
            prepare(refusing, tmp_path / directory, 1)
    with pytest.raises(DataError, match=r"0\.jsonl: UTF-16, where UTF-8 is needed"):
        prepare(refusing, tmp_path / "other", 1)
    assert not (tmp_path / "other").exists()
    for number in (1, 2):
        prepare(request, tmp_path / "again", 1, Part(number, 2))
    with pytest.raises(DataError, match="data.bad_text: refuse is asked for"):
        merge(refusing, tmp_path / "again", 2)
    assert merge(request, tmp_path / "again", 2) == whole


def test_a_line_is_named_by_its_number_in_a_file_that_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_dar.text.pieces.UNIT_BYTES", 1000)
    (tmp_path / "a.jsonl").write_text('{"text": "some text"}\n' * 300 + '{"text": ""}\n')
    request = Request(
        source=(str(tmp_path),), text_field="text", tokenizer="bytes", val_fraction=0.2, bad_text="refuse"
    )
    with pytest.raises(DataError, match=r"a\.jsonl:301: the text is empty"):
        prepare(request, tmp_path / "out", 1)


def test_a_source_without_any_text_says_why(tmp_path):
    (tmp_path / "a.txt").write_bytes(GOOD.encode("utf-16"))
    request = Request(source=(str(tmp_path),), text_field="text", tokenizer="bytes", val_fraction=0.2)
    with pytest.raises(
        DataError, match=r"no text in the 1 file.*; left out 1 document.*: 1 in UTF-16; the first: UTF-16, where"
    ):
        prepare(request, tmp_path / "out", 1)
