import gzip
import hashlib
import json
import sysconfig
import tracemalloc
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from lightning_dar.errors import DataError
from lightning_dar.text import sources
from lightning_dar.text.pieces import PIECE_CHARS, read_pieces
from lightning_dar.text.sources import find_files, fingerprint


def documents(*source: str, text_field: str = "text") -> list[str]:
    texts = [""]
    for file in find_files(source):
        for piece in read_pieces(file, text_field):
            texts[-1] += piece.text
            if piece.ends_document:
                texts.append("")
    assert texts.pop() == ""
    return texts


def zstd(content: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(content, asbytes=True)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_stdlib_is_the_library_without_its_tests():
    names = [file.name for file in find_files(["stdlib"])]
    assert {"os.py", "json/decoder.py", "asyncio/events.py"} <= set(names)
    assert names == sorted(names)
    assert not [name for name in names if {"test", "tests", "site-packages"} & set(name.split("/"))]
    root = Path(sysconfig.get_paths()["stdlib"])
    file = next(file for file in find_files(["stdlib"]) if file.name == "os.py")
    assert "".join(piece.text for piece in read_pieces(file, "text")) == (root / "os.py").read_text()


def test_stdlib_has_no_tables_that_programs_wrote(monkeypatch):
    """Nothing of any size that is a tenth digits, as tables of characters are; nor help texts made from documents.
    Shards that were prepared with them are told apart."""
    files = find_files(["stdlib"])
    names = {file.name for file in files}
    assert not names & {"html/entities.py", "encodings/cp437.py", "pydoc_data/topics.py", "locale.py", "stringprep.py"}
    assert {"html/parser.py", "codecs.py", "pydoc.py", "re/_compiler.py"} <= names
    for file in files:
        text = Path(file.path).read_text(encoding="utf-8", errors="replace")
        assert sum(map(str.isdigit, text)) < max(0.1 * len(text), 1000), file.name
    monkeypatch.setattr(sources, "_GENERATED_FOLDERS", set())
    assert fingerprint(find_files(["stdlib"])) != fingerprint(files)


def test_folders_files_and_globs_are_read_once_in_order_of_name(tmp_path):
    write(tmp_path / "b.txt", "b\r\n")
    write(tmp_path / "a" / "z.md", "z")
    write(tmp_path / "a" / "c.py", "c")
    write(tmp_path / "a" / "blank.txt", " \n\n")
    write(tmp_path / "a" / "image.png", "not text")
    write(tmp_path / ".git" / "hidden.txt", "hidden")
    assert documents(str(tmp_path)) == ["c", "z", "b\r\n"]
    assert documents(str(tmp_path), str(tmp_path / "b.txt"), str(tmp_path / "**" / "*.md")) == [
        "c",
        "z",
        "b\r\n",
    ]
    assert documents(str(tmp_path / "*.txt")) == ["b\r\n"]


def test_jsonl_and_parquet_hold_one_document_a_row(tmp_path):
    rows = ["first", "second\nline", "ünï"]
    lines = "\n".join(json.dumps({"body": row, "id": 1}) for row in rows) + "\n\n"
    write(tmp_path / "a.jsonl", lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert documents(str(tmp_path), text_field="body") == rows * 2

    many = [f"row {i}" for i in range(3000)]
    parquet.write_table(pyarrow.table({"body": many, "n": range(3000)}), tmp_path / "c.parquet")
    assert documents(str(tmp_path / "c.parquet"), text_field="body") == many


@pytest.mark.parametrize("ending", [".txt", ".jsonl"])
def test_long_documents_come_in_pieces_cut_at_line_ends(tmp_path, ending):
    text = "".join(f"line {i}: {'x' * (i % 90)}\n" for i in range(5000)) + "y" * (2 * PIECE_CHARS) + "\nend"
    path = write(tmp_path / f"long{ending}", text if ending == ".txt" else json.dumps({"text": text}))
    pieces = list(read_pieces(find_files([str(path)])[0], "text"))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.ends_document for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(0 < len(piece.text) <= PIECE_CHARS for piece in pieces)
    assert all(piece.text.endswith("\n") for piece in pieces[:4])
    assert pieces[-1].position == path.stat().st_size


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json}", "a.jsonl:3: not JSON"),
        ('{"text": "cut off', "a.jsonl:3: not JSON"),
        ('{"text": ' + "[" * 100_000, "a.jsonl:3: not JSON"),
    ],
)
def test_a_bad_jsonl_line_is_named(tmp_path, line, complaint):
    path = write(tmp_path / "a.jsonl", '{"text": "good"}\n\n' + line + "\n")
    with pytest.raises(DataError, match=complaint):
        documents(str(path))


def test_bad_files_are_named(tmp_path):
    lines = b'{"text": "a"}\n' * 1000
    for ending, whole in ((".gz", gzip.compress(lines)), (".zst", zstd(lines))):
        (tmp_path / f"cut.jsonl{ending}").write_bytes(whole[: len(whole) // 2])
        (tmp_path / f"plain.jsonl{ending}").write_bytes(b'{"text": "a"}\n')
    (tmp_path / "cut.txt.zst").write_bytes(zstd(b"text")[:-1])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 is not enough")
    for path in tmp_path.iterdir():
        with pytest.raises(DataError, match=path.name):
            documents(str(path))


@pytest.mark.parametrize("pack", [gzip.compress, lambda content: zstd(content)], ids=["gz", "zst"])
def test_a_compressed_file_may_have_several_frames(tmp_path, pack):
    ending = ".gz" if pack is gzip.compress else ".zst"
    (tmp_path / f"a.jsonl{ending}").write_bytes(pack(b'{"text": "one"}\n') + pack(b'{"text": "two"}\n'))
    (tmp_path / f"b.txt{ending}").write_bytes(pack("thr\u00e9".encode()[:4]) + pack("thr\u00e9".encode()[4:]))
    assert documents(str(tmp_path)) == ["one", "two", "thr\u00e9"]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "txt.gz", "parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path, kind):
    """24 MB of text: a reader that holds one whole needs more than 8 MB."""
    path = tmp_path / f"a.{kind}"
    row, rows = "some text of a document " * 50, 20_000
    if kind == "parquet":
        table = pyarrow.table({"text": pyarrow.array([row]).take(pyarrow.array([0] * rows))})
        parquet.write_table(table, path, row_group_size=rows, use_dictionary=False, compression="none")
        assert parquet.ParquetFile(path).num_row_groups == 1
        del table
    else:
        line = json.dumps({"text": row}) + "\n" if "jsonl" in kind else row + "\n"
        content = (line * rows).encode()
        path.write_bytes(zstd(content) if "zst" in kind else gzip.compress(content, 1) if "gz" in kind else content)
        del content
    (file,) = find_files([str(path)])
    chars, held, before = 0, 0, pyarrow.total_allocated_bytes()
    tracemalloc.start()
    for piece in read_pieces(file, "text"):
        chars += len(piece.text)
        held = max(held, pyarrow.total_allocated_bytes() - before)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert chars >= len(row) * rows > 23e6
    assert peak + held < 8e6


def test_parquet_without_the_column_names_those_there(tmp_path):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"body": ["x"], "id": [1]}), path)
    with pytest.raises(DataError, match=r"no column 'text' .*there is body, id"):
        documents(path)
    with pytest.raises(DataError, match="column 'id' must hold strings, not int64"):
        documents(path, text_field="id")


def test_sources_without_files_are_refused(tmp_path):
    write(tmp_path / "image.png", "x")
    for source, complaint in [
        (tmp_path / "nowhere", "nowhere does not exist"),
        (tmp_path / "*.txt", r"\*.txt holds no file that ends in .txt .md"),
        (tmp_path, "holds no file that ends in .txt .md"),
        (tmp_path / "image.png", "image.png is none of the kinds .txt .md"),
    ]:
        with pytest.raises(DataError, match=complaint):
            find_files([str(source)])


def test_fingerprint_is_that_of_the_content_wherever_it_lies(tmp_path):
    for copy in ("one", "two"):
        write(tmp_path / copy / "a.txt", "same")
        write(tmp_path / copy / "deep" / "b.txt", "text")
    one, two = (fingerprint(find_files([str(tmp_path / copy)])) for copy in ("one", "two"))
    rows = [[name, 4, hashlib.sha256(text).hexdigest()] for name, text in [("a.txt", b"same"), ("deep/b.txt", b"text")]]
    assert one == two == hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    write(tmp_path / "two" / "a.txt", "Same")
    assert fingerprint(find_files([str(tmp_path / "two")])) != one


def test_fingerprint_of_a_large_file_sees_its_start_middle_end_and_size(tmp_path):
    path, size = tmp_path / "large.txt", 9 * 2**20
    path.write_bytes(b"a" * size)
    seen = {fingerprint(find_files([str(path)]))}
    for offset in (0, size // 2, size - 1):
        with path.open("r+b") as stream:
            stream.seek(offset)
            stream.write(b"b")
        seen.add(fingerprint(find_files([str(path)])))
    path.write_bytes(path.read_bytes() + b"b")
    seen.add(fingerprint(find_files([str(path)])))
    assert len(seen) == 5
