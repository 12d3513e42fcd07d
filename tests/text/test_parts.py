import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text.loading import Windows
from lightning_dar.text.manifest import Request, open_folder, open_prepared
from lightning_dar.text.pieces import Part, Slice, deal_units, parse_part, plan_units, read_pieces
from lightning_dar.text.prepare import merge, prepare
from lightning_dar.text.sources import SourceFile, find_files

pytestmark = pytest.mark.filterwarnings("ignore:An item was larger than the target chunk size")
UNIT = 4000  # bytes, for sources of some 40 KB
COUNT = 3


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr("lightning_dar.text.pieces.UNIT_BYTES", UNIT)
    monkeypatch.setattr("lightning_dar.text.encode._CHUNK_BYTES", 2000)
    monkeypatch.setattr("lightning_dar.text.encode._BATCH_CHARS", 700)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """30 small files, a compressed one, a long one, and a .jsonl and a .parquet of several units each."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(30):
        (folder / f"{number:02}.txt").write_text(f"file {number}\n" * (5 + number))
    (folder / "long.md").write_text("".join(f"line {number}\n" for number in range(800)))
    rows = [f"row {number} é " * (1 + number % 40) for number in range(150)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    codec = pyarrow.Codec("zstd")
    (folder / "rows.jsonl.zst").write_bytes(codec.compress((folder / "rows.jsonl").read_bytes(), asbytes=True))
    table = pyarrow.table({"text": [f"cell {row}" for row in rows]})
    parquet.write_table(table, folder / "table.parquet", row_group_size=10, compression="none", use_dictionary=False)
    return folder


@pytest.fixture(scope="module")
def request_(source):
    return Request(source=(str(source),), text_field="text", tokenizer="bpe:300", val_fraction=0.3)


@pytest.fixture
def parts(request_, tmp_path):
    """A folder that holds all parts, prepared in another order than theirs."""
    for number in (2, 3, 1):
        prepare(request_, tmp_path / "parts", 1, Part(number, COUNT))
    return tmp_path / "parts"


def contents(directory: Path) -> dict[str, bytes]:
    """Of every file but the indexes, which hold the time."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "index.json"]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def windows(directory: Path, split: str) -> list[list[int]]:
    opened = Windows(str(directory / split), seq_len=15)
    return [opened[index].tolist() for index in range(len(opened))]


def test_merged_parts_are_what_one_process_writes(request_, parts, tmp_path):
    inodes = {path.name: path.stat().st_ino for path in parts.rglob("chunk-*.bin") if path.parent.name == "train"}
    whole = prepare(request_, tmp_path / "whole", num_workers=2)
    assert merge(request_, parts, COUNT) == whole
    assert contents(parts) == contents(tmp_path / "whole")
    for split in ("train", "val"):
        assert len(whole[split]["chunks"]) > 2 * COUNT
        assert windows(parts, split) == windows(tmp_path / "whole", split) != []
    assert not list(tmp_path.glob(".parts.*-of-*")), "no locks of parts are left"
    assert inodes == {path.name: path.stat().st_ino for path in (parts / "train").glob("*.bin")}, "moved, not copied"
    assert merge(request_, parts, COUNT) == whole
    assert prepare(request_, parts, 1, Part(1, COUNT)) == whole == prepare(request_, parts, 1)


def test_units_hold_every_document_once_and_parts_every_unit(source):
    files = find_files([str(source)])
    units = plan_units(files)
    assert [piece.file for unit in units for piece in unit if piece.start == 0] == files
    documents = [
        piece.text for unit in units for part in unit for piece in read_pieces(part.file, "text", part.start, part.stop)
    ]
    assert documents == [piece.text for file in files for piece in read_pieces(file, "text")]
    cut = {part.file.name for unit in units for part in unit if part.stop - part.start < part.file.size}
    assert cut == {"rows.jsonl", "table.parquet"}
    sizes = [sum(part.stop - part.start for part in unit) for unit in units]
    assert all(size <= UNIT for unit, size in zip(units, sizes, strict=True) if len(unit) > 1)
    for count in (1, 2, 5):
        dealt = [deal_units(sizes, Part(number, count)) for number in range(1, count + 1)]
        assert sorted(unit for part in dealt for unit in part) == list(range(len(units)))
        shares = [sum(sizes[unit] for unit in part) for part in dealt]
        assert max(shares) - min(shares) <= max(sizes)


def test_a_large_file_is_cut_evenly_and_one_that_cannot_be_stays_whole():
    lines = SourceFile(name="a.jsonl", path="a.jsonl", size=10_001)
    packed = SourceFile(name="b.jsonl.zst", path="b.jsonl.zst", size=10_001)
    assert plan_units([lines, packed]) == [
        [Slice(lines, 0, 3333)],
        [Slice(lines, 3333, 6667)],
        [Slice(lines, 6667, 10_001)],
        [Slice(packed, 0, 10_001)],
    ]


def test_a_bad_line_is_named_by_its_number_in_the_file(tmp_path):
    lines = [json.dumps({"text": f"line {number}"}) for number in range(1, 500)]
    lines[321] = "{oops"  # line 322
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (file,) = find_files([str(tmp_path)])
    with pytest.raises(DataError, match=r"a\.jsonl:322: not JSON"):
        for start, stop in ((0, 3000), (3000, 6000), (6000, file.size)):
            list(read_pieces(file, "text", start, stop))


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3"])
def test_a_shard_is_the_i_th_of_n(text):
    assert parse_part("3/8") == (3, 8)
    with pytest.raises(UsageError, match=f"--shard {text}: i/n is needed"):
        parse_part(text)


def test_more_parts_than_units_are_refused_and_leave_nothing(request_, tmp_path):
    with pytest.raises(UsageError, match=r"--shard 1/500: the source has \d+ unit\(s\) .* at most \d+ parts"):
        prepare(request_, tmp_path / "out", 1, Part(1, 500))
    assert not (tmp_path / "out").exists()


def test_missing_doubled_foreign_and_damaged_parts_are_named(request_, parts, tmp_path):
    def changed(change) -> Path:
        copy = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        shutil.copytree(parts, copy)
        change(copy / "parts")
        return copy

    def set_manifest(path: Path, **changes):
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps(manifest | changes))

    def double(folder: Path):
        shutil.rmtree(folder / "2-of-3")
        shutil.copytree(folder / "1-of-3", folder / "2-of-3")

    chunk = next((parts / "parts/2-of-3/train").glob("*.bin")).name
    part = json.loads((parts / "parts/3-of-3/manifest.json").read_text())["part"]
    for change, complaint in [
        (lambda folder: shutil.rmtree(folder / "2-of-3"), "lacks 1 of 3 parts: 2-of-3; prepare what is missing"),
        (double, "2-of-3 holds 1-of-3; lay every part"),
        (lambda folder: shutil.copytree(folder / "1-of-3", folder / "1-of-4"), "holds 1-of-4, not one of 3 parts"),
        (lambda folder: (folder / f"2-of-3/train/{chunk}").unlink(), f"{chunk}: shard missing"),
        (lambda folder: os.truncate(folder / f"2-of-3/train/{chunk}", 20), f"{chunk}: shard has 20 bytes"),
        (
            lambda folder: set_manifest(folder / "2-of-3/manifest.json", source_fingerprint="other"),
            "part 2-of-3 was prepared with another source fingerprint than the first",
        ),
        (
            lambda folder: set_manifest(folder / "3-of-3/manifest.json", tokenizer={"spec": "bpe:300", "sha256": "x"}),
            "part 3-of-3 was prepared with another tokenizer than the first",
        ),
        (
            lambda folder: set_manifest(folder / "3-of-3/manifest.json", part=part | {"units": part["units"][1:]}),
            "the parts do not make up the source",
        ),
        (
            lambda folder: set_manifest(
                folder / "3-of-3/manifest.json",
                val={**json.loads((folder / "3-of-3/manifest.json").read_text())["val"], "tokens": 5},
            ),
            "index.json: .* tokens, manifest.json has 5",
        ),
    ]:
        copy = changed(change)
        before = contents(copy)
        with pytest.raises(DataError, match=complaint):
            merge(request_, copy, COUNT)
        assert contents(copy) == before
    for count, complaint in [(2, "lacks 2 of 2 parts: 1-of-2, 2-of-2"), (4, "lacks 4 of 4 parts")]:
        with pytest.raises(DataError, match=complaint):
            merge(request_, parts, count)
    with pytest.raises(UsageError, match="--merge 0"):
        merge(request_, parts, 0)
    with pytest.raises(DataError, match=r"data\.val_fraction: the folder has 0\.3, asked for 0\.5"):
        merge(replace(request_, val_fraction=0.5), parts, COUNT)


def test_parts_are_not_taken_for_the_whole(request_, parts):
    with pytest.raises(DataError, match="holds parts that are not merged yet; .*`prepare --merge n`"):
        prepare(request_, parts, 1)


@pytest.mark.parametrize("after", [0, 1, 7])
def test_an_interrupted_merge_is_taken_up(request_, parts, tmp_path, monkeypatch, after):
    whole = prepare(request_, tmp_path / "whole", num_workers=1)
    rename, moved = os.rename, []

    def killed(source, target):
        if str(source).endswith(".bin"):
            if len(moved) == after:
                raise KeyboardInterrupt
            moved.append(source)
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            merge(request_, parts, COUNT)
    with pytest.raises(DataError, match="not merged yet"):
        open_folder(parts)
    assert merge(request_, parts, COUNT) == whole
    assert contents(parts) == contents(tmp_path / "whole")
    assert open_prepared(parts, request_) == whole
