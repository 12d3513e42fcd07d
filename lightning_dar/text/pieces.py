"""Pieces of text, and how a source is dealt out to the processes that prepare it.

A text file (.txt .md .py), a line of a .jsonl file and a row of a .parquet file are one document each; .gz and
.zst are decompressed as they are read. Documents longer than `PIECE_CHARS` characters come in pieces cut at line
ends, so that one long file can still be split into train and validation, and so that no file is ever held in
memory whole: of a .parquet file a few pages of one column, of a compressed one a buffer. A text file too large for
that is read twice, as it is known at its end only whether it is text.

A unit is a run of whole documents of about `UNIT_BYTES`: several files, or a range of a large .jsonl (by lines) or
.parquet file (by row groups); other files stay whole. Units depend on the source alone. Each gets chunks of its own,
so that the shards are the same whether one process prepares all units or many prepare some each.
"""

import heapq
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text.bad_text import BadText, NotText, check_blocks, check_encoding, text_of
from lightning_dar.text.sources import TEXT_ENDINGS, SourceFile

PIECE_CHARS = 2**16

_CODECS = {".gz": "gzip", ".zst": "zstd"}
_BUFFER_BYTES = 2**20
_BATCH_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A document, or a part of a long one. `position` counts the bytes of its file read so far."""

    text: str
    ends_document: bool
    position: int


def read_pieces(
    file: SourceFile, text_field: str, start: int = 0, stop: int | None = None, bad: BadText | None = None
) -> Iterator[Piece]:
    """Streams the documents of one file.

    `start` and `stop` (bytes) choose the lines of a .jsonl or the row groups of a .parquet file that begin there.
    Documents that are no text go to `bad`; by default they are left out.

    Raises:
        DataError: names the file, and the line of a .jsonl, that cannot be read; documents that `bad` refuses.
    """
    name = file.name.lower()
    stop = file.size if stop is None else stop
    bad = BadText() if bad is None else bad
    if name.endswith(TEXT_ENDINGS):
        return _read_text(file, bad)
    if name.endswith(".parquet"):
        return _read_parquet(file, text_field, start, stop, bad)
    return _read_jsonl(file, text_field, start, stop, bad)


def _read_text(file: SourceFile, bad: BadText) -> Iterator[Piece]:
    try:
        with file.open() as raw:
            stream = _content(raw, file)
            first = stream.read(_BUFFER_BYTES)
            try:
                is_whole = len(first) < _BUFFER_BYTES
                blocks = _blocks(text_of(first)) if is_whole else None
                if not is_whole:
                    check_blocks(chain([first], iter(lambda: stream.read(_BUFFER_BYTES), b"")))
            except NotText as error:
                bad.add(error, lambda line=error.line: f"{file.path}:{line}")
                return
        if blocks is not None:
            yield from _pieces(blocks, lambda: file.size)
            return
        with file.open() as raw:
            stream = io.TextIOWrapper(_content(raw, file), encoding="utf-8-sig", newline="")
            yield from _pieces(iter(lambda: stream.read(PIECE_CHARS), ""), raw.tell)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file.path}: cannot be read ({error})") from error


def _pieces(blocks: Iterable[str], position: Callable[[], int]) -> Iterator[Piece]:
    """Cuts one document into pieces."""
    for text, ends in _cut(blocks):
        yield Piece(text=text, ends_document=ends, position=position())


def _content(raw: BinaryIO, file: SourceFile) -> BinaryIO:
    codec = _CODECS.get(PurePath(file.name).suffix.lower())
    if codec is None:
        return raw
    import pyarrow  # unlike the bindings of zstd it notices a file that was cut off

    return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), codec), _BUFFER_BYTES)


def _read_jsonl(file: SourceFile, text_field: str, start: int, stop: int, bad: BadText) -> Iterator[Piece]:
    try:
        with file.open() as raw:
            stream = _content(raw, file)
            try:
                check_encoding(stream.peek(4))
            except NotText as error:
                if start == 0:  # once, also of a file that is read in slices
                    bad.add(error, lambda: file.path)
                return
            for number, line in enumerate(stream if stream is not raw else _lines(raw, start, stop), start=1):
                place = partial(_line_place, file, raw, start, number)
                try:
                    text = _jsonl_text(line, text_field)
                except NotText as error:
                    bad.add(error, place)
                    continue
                except DataError as error:
                    raise DataError(f"{place()}: {error}") from error
                if text is not None:
                    yield from _pieces(_blocks(text), raw.tell)
    except OSError as error:
        raise DataError(f"{file.path}: cannot be read ({error})") from error


def _lines(raw: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """The lines whose first byte lies in [start, stop)."""
    if start > 0:
        raw.seek(start - 1)
        raw.readline()
    while raw.tell() < stop and (line := raw.readline()):
        yield line


def _line_place(file: SourceFile, raw: BinaryIO, start: int, number: int) -> str:
    return f"{file.path}:{_lines_before(raw, start) + number}"


def _lines_before(raw: BinaryIO, start: int) -> int:
    """How many lines begin before byte `start`."""
    if start == 0:
        return 0
    raw.seek(0)
    blocks = iter(lambda: raw.read(min(_BUFFER_BYTES, start - 1 - raw.tell())), b"")
    return 1 + sum(block.count(b"\n") for block in blocks)


def _jsonl_text(line: bytes, text_field: str) -> str | None:
    """None for a line without a document. Raises NotText, and DataError where the line is not JSON."""
    content = text_of(line, may_be_blank=True)
    if not content.strip():
        return None
    try:
        row = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise NotText("not a JSON object", f"a JSON object is needed, got {type(row).__name__}")
    if text_field not in row:
        there = ", ".join(row) or "none"
        raise NotText("without the text field", f"no field {text_field!r} (data.text_field); there is {there}")
    return text_of(row[text_field])


def _read_parquet(file: SourceFile, text_field: str, start: int, stop: int, bad: BadText) -> Iterator[Piece]:
    import pyarrow
    from pyarrow import parquet

    try:
        # So the pages of a column are read one after the other; by default it is all of a row group at once.
        streamed = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False}
        with file.open() as raw, parquet.ParquetFile(raw, **streamed) as table:
            _check_column(file, table.schema_arrow, text_field)
            groups = _row_groups(table.metadata, start, stop)
            rows, rows_read = sum(table.metadata.row_group(group).num_rows for group in groups), 0
            before = sum(table.metadata.row_group(group).num_rows for group in range(groups[0] if groups else 0))
            for batch in table.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups, columns=[text_field]):
                rows_read += batch.num_rows
                position = start + (stop - start) * rows_read // rows
                first = before + rows_read - batch.num_rows + 1
                for number, document in enumerate(_bytes_of(batch.column(0)), start=first):
                    try:
                        text = text_of(document)
                    except NotText as error:
                        bad.add(error, lambda number=number: f"{file.path}: row {number:,}")
                        continue
                    yield from _pieces(_blocks(text), lambda position=position: position)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file.path}: not a readable parquet file ({reason})") from error


def _check_column(file: SourceFile, schema: Any, text_field: str) -> None:
    """Raises DataError where there is no such column, or it cannot hold text."""
    from pyarrow import types

    if text_field not in schema.names:
        there = ", ".join(schema.names)
        raise DataError(f"{file.path}: no column {text_field!r} (data.text_field); there is {there}")
    kind = schema.field(text_field).type
    values = kind.value_type if types.is_dictionary(kind) else kind
    are_text = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(is_text(values) for is_text in are_text):
        raise DataError(f"{file.path}: column {text_field!r} must hold strings, not {kind}")


def _bytes_of(column: Any) -> list[bytes | None]:
    """The bytes of each text: the strings of a column need not be valid UTF-8."""
    import pyarrow

    column = column.dictionary_decode() if pyarrow.types.is_dictionary(column.type) else column
    return column.cast(pyarrow.large_binary()).to_pylist()


def _row_groups(metadata: Any, start: int, stop: int) -> list[int]:
    """The row groups whose first page lies in bytes [start, stop)."""
    firsts = (metadata.row_group(group).column(0) for group in range(metadata.num_row_groups))
    offsets = [first.dictionary_page_offset or first.data_page_offset for first in firsts]
    return [group for group, offset in enumerate(offsets) if start <= offset < stop]


def _blocks(text: str) -> Iterator[str]:
    return (text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS))


def _cut(blocks: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yields (piece, whether it ends the document); the cuts do not depend on the size of the blocks."""
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > PIECE_CHARS:
            end = rest.rfind("\n", 0, PIECE_CHARS) + 1 or PIECE_CHARS
            yield rest[:end], False
            rest = rest[end:]
    yield rest, True


UNIT_BYTES = 128 * 2**20  # a few chunks of tokens: little is lost at their ends, and a large source has many units
_CUT_ENDINGS = (".jsonl", ".parquet")


class Slice(NamedTuple):
    """What begins in the bytes [start, stop) of a file."""

    file: SourceFile
    start: int
    stop: int


class Part(NamedTuple):
    """Part `number` (from 1) of `count`."""

    number: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.number}-of-{self.count}"


def parse_part(text: str) -> Part:
    """`3/8`. Raises UsageError."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    part = Part(int(match[1]), int(match[2])) if match else Part(0, 0)
    if not 1 <= part.number <= part.count:
        raise UsageError(f"--shard {text}: i/n is needed, the i-th of n parts, such as 1/8 to 8/8")
    return part


def plan_units(files: Sequence[SourceFile]) -> list[list[Slice]]:
    units: list[list[Slice]] = []
    room = -1
    for piece in _slices(files):
        size = piece.stop - piece.start
        if size > room:
            units.append([])
            room = UNIT_BYTES
        units[-1].append(piece)
        room -= size
    return units


def _slices(files: Sequence[SourceFile]) -> Iterator[Slice]:
    for file in files:
        count = max(1, -(-file.size // UNIT_BYTES)) if file.name.lower().endswith(_CUT_ENDINGS) else 1
        bounds = [number * file.size // count for number in range(count + 1)]
        for start, stop in pairwise(bounds):
            yield Slice(file, start, stop)


def deal_units(sizes: Sequence[int], part: Part) -> list[int]:
    """The units of a part, ascending: the largest are dealt first, each to the part with the fewest bytes so far.

    Raises:
        UsageError: more parts than units.
    """
    if part.count > len(sizes):
        raise UsageError(
            f"--shard {part.number}/{part.count}: the source has {len(sizes)} unit(s) of up to "
            f"{UNIT_BYTES // 2**20} MiB, files that cannot be cut stay whole; give at most {len(sizes)} parts"
        )
    parts = [(0, number) for number in range(1, part.count + 1)]  # already a heap
    mine = []
    for unit in sorted(range(len(sizes)), key=lambda unit: -sizes[unit]):
        dealt, number = heapq.heappop(parts)
        heapq.heappush(parts, (dealt + sizes[unit], number))
        if number == part.number:
            mine.append(unit)
    return sorted(mine)
