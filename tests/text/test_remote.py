"""fsspec's memory file system stands for the remote ones: text behind any URL goes the same way."""

import gzip
import json

import fsspec
import pyarrow
import pytest
from pyarrow import parquet

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text import TextData
from lightning_dar.text.manifest import Request
from lightning_dar.text.module import existing_shards
from lightning_dar.text.pieces import read_pieces
from lightning_dar.text.prepare import prepare
from lightning_dar.text.sources import find_files, fingerprint


@pytest.fixture
def bucket():
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


@pytest.fixture
def both(bucket, tmp_path):
    """The same files in a folder and behind memory://bucket/texts."""
    rows = "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(300))
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    folder = tmp_path / "texts"
    (folder / "deep" / "a.txt").write_text("a text\r\nof two lines")
    (folder / "b.jsonl").write_text(rows)
    (folder / "c.jsonl.zst").write_bytes(pyarrow.Codec("zstd").compress(rows.encode(), asbytes=True))
    (folder / "d.txt.gz").write_bytes(gzip.compress(b"a packed text"))
    (folder / "e.png").write_bytes(b"no text")
    parquet.write_table(pyarrow.table({"text": [f"cell {number}" for number in range(300)]}), folder / "f.parquet")
    bucket.put(str(folder), "/bucket/texts", recursive=True)
    return folder, "memory://bucket/texts"


def texts(source):
    return [(file.name, piece.text) for file in find_files([source]) for piece in read_pieces(file, "text")]


def test_a_url_reads_as_the_folder_does(both):
    folder, url = both
    assert texts(url) == texts(str(folder))
    assert len(texts(url)) == 902
    for pattern in ("*.jsonl", "**/*.txt"):
        assert texts(f"{url}/{pattern}") == texts(f"{folder}/{pattern}") != []
    assert texts(f"{url}/f.parquet") == texts(f"{folder}/f.parquet")
    assert fingerprint(find_files([url])) == fingerprint(find_files([str(folder)]))


def test_prepared_from_a_url_the_shards_are_the_same(both, tmp_path, monkeypatch):
    folder, url = both
    monkeypatch.setattr("lightning_dar.text.pieces.UNIT_BYTES", 2000)
    request = {"text_field": "text", "tokenizer": "bytes", "val_fraction": 0.2}
    manifests = [
        prepare(Request(source=(str(source),), **request), tmp_path / name, num_workers=1)
        for name, source in (("local", folder), ("remote", url))
    ]
    assert manifests[0]["train"] == manifests[1]["train"]
    assert manifests[0]["val"] == manifests[1]["val"]


def test_what_a_file_system_keeps_of_the_content_stands_for_it(bucket, monkeypatch):
    bucket.pipe("/bucket/a.txt", b"text")
    (plain,) = find_files(["memory://bucket/a.txt"])
    info = bucket.info

    def tagged(path, **options):
        return {**info(path, **options), "ETag": "0af1"}

    monkeypatch.setattr(type(bucket), "info", lambda self, path, **options: tagged(path, **options))
    (file,) = find_files(["memory://bucket/a.txt"])
    assert file.content_tag == "0af1"
    monkeypatch.setattr(type(bucket), "open", None)  # not read
    assert fingerprint([file]) != fingerprint([plain.__class__(name="a.txt", path="", size=4, content_tag="0af2")])


def test_urls_that_cannot_be_read_are_named(bucket):
    bucket.pipe("/bucket/a.png", b"no text")
    for url, complaint in [
        ("memory://bucket/nowhere.txt", "nowhere.txt holds no file that ends in"),
        ("memory://bucket", "holds no file that ends in .txt"),
        ("no-such-scheme://bucket/a.txt", "no-such-scheme://bucket/a.txt cannot be read on this machine"),
    ]:
        with pytest.raises(DataError, match=complaint):
            find_files([url])
    bucket.pipe("/bucket/cut.jsonl.zst", pyarrow.Codec("zstd").compress(b"{}" * 5000, asbytes=True)[:-9])
    with pytest.raises(DataError, match=r"memory://.*cut\.jsonl\.zst: cannot be read"):
        texts("memory://bucket/cut.jsonl.zst")


def test_a_missing_package_is_named(monkeypatch):
    def missing(url, **_):
        raise ImportError("Install s3fs to access S3")  # fsspec's own words

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(DataError, match=r"s3://bucket/a\.txt cannot be read on this machine \(Install s3fs"):
        find_files(["s3://bucket/a.txt"])


def test_which_urls_are_text():
    for url in ("s3://b/a.parquet", "s3://b/**/*.jsonl.zst", "hf://datasets/o/n/sample", "https://h/a.txt"):
        assert existing_shards([url]) is None
    assert existing_shards(["s3://bucket/shards/"]) == "s3://bucket/shards"
    with pytest.raises(UsageError, match="a URL of text ends in"):
        TextData(source="https://host/shards")
