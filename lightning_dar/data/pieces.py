"""The text of a source file as a stream of pieces.

A text file (.txt .md .py), a line of a .jsonl file and a row of a .parquet file are one document each; .gz and
.zst are decompressed as they are read. Documents longer than `PIECE_CHARS` characters come in pieces cut at line
ends, so that one long file can still be split into train and validation, and so that no file is ever held in
memory whole: of a .parquet file a few pages of one column, of a compressed one a buffer.
"""

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, BinaryIO

from lightning_dar.data.sources import TEXT_ENDINGS, SourceFile
from lightning_dar.errors import DataError

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


def read_pieces(file: SourceFile, text_field: str, start: int = 0, stop: int | None = None) -> Iterator[Piece]:
    """Streams the documents of one file; documents with nothing but white space are left out.

    `start` and `stop` (bytes) choose the lines of a .jsonl or the row groups of a .parquet file that begin there.
    Bytes of a text file that are not UTF-8 become U+FFFD (some library sources are Latin-1).

    Raises:
        DataError: names the file, and the line of a .jsonl, that cannot be read or lacks `text_field`.
    """
    name = file.name.lower()
    stop = file.size if stop is None else stop
    if name.endswith(TEXT_ENDINGS):
        return _read_text(file)
    if name.endswith(".parquet"):
        return _read_parquet(file, text_field, start, stop)
    return _read_jsonl(file, text_field, start, stop)


def _read_text(file: SourceFile) -> Iterator[Piece]:
    try:
        with file.open() as raw:
            stream = io.TextIOWrapper(_content(raw, file), encoding="utf-8-sig", errors="replace", newline="")
            for text, ends in _cut(iter(lambda: stream.read(PIECE_CHARS), "")):
                yield Piece(text=text, ends_document=ends, position=raw.tell())
    except OSError as error:
        raise DataError(f"{file.path}: cannot be read ({error})") from error


def _content(raw: BinaryIO, file: SourceFile) -> BinaryIO:
    codec = _CODECS.get(PurePath(file.name).suffix.lower())
    if codec is None:
        return raw
    import pyarrow  # unlike the bindings of zstd it notices a file that was cut off

    return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), codec), _BUFFER_BYTES)


def _read_jsonl(file: SourceFile, text_field: str, start: int, stop: int) -> Iterator[Piece]:
    try:
        with file.open() as raw:
            stream = _content(raw, file)
            for number, line in enumerate(stream if stream is not raw else _lines(raw, start, stop), start=1):
                if line.strip():
                    try:
                        document = _jsonl_text(line, text_field)
                    except DataError as error:
                        raise DataError(f"{file.path}:{_lines_before(raw, start) + number}: {error}") from error
                    for text, ends in _cut(_blocks(document)):
                        yield Piece(text=text, ends_document=ends, position=raw.tell())
    except OSError as error:
        raise DataError(f"{file.path}: cannot be read ({error})") from error


def _lines(raw: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """The lines whose first byte lies in [start, stop)."""
    if start > 0:
        raw.seek(start - 1)
        raw.readline()
    while raw.tell() < stop and (line := raw.readline()):
        yield line


def _lines_before(raw: BinaryIO, start: int) -> int:
    """How many lines begin before byte `start`."""
    if start == 0:
        return 0
    raw.seek(0)
    blocks = iter(lambda: raw.read(min(_BUFFER_BYTES, start - 1 - raw.tell())), b"")
    return 1 + sum(block.count(b"\n") for block in blocks)


def _jsonl_text(line: bytes, text_field: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"a JSON object is needed, got {type(row).__name__}")
    if text_field not in row:
        raise DataError(f"no field {text_field!r} (data.text_field); there is {', '.join(row) or 'none'}")
    text = row[text_field]
    if not isinstance(text, str):
        raise DataError(f"field {text_field!r} must be a string, got {type(text).__name__}")
    return text.encode("utf-8", "replace").decode("utf-8")  # JSON may hold lone surrogates, UTF-8 may not


def _read_parquet(file: SourceFile, text_field: str, start: int, stop: int) -> Iterator[Piece]:
    import pyarrow
    from pyarrow import parquet

    try:
        # So the pages of a column are read one after the other; by default it is all of a row group at once.
        streamed = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False}
        with file.open() as raw, parquet.ParquetFile(raw, **streamed) as table:
            columns = table.schema_arrow.names
            if text_field not in columns:
                there = ", ".join(columns)
                raise DataError(f"{file.path}: no column {text_field!r} (data.text_field); there is {there}")
            groups = _row_groups(table.metadata, start, stop)
            rows, rows_read = sum(table.metadata.row_group(group).num_rows for group in groups), 0
            for batch in table.iter_batches(batch_size=_BATCH_ROWS, row_groups=groups, columns=[text_field]):
                rows_read += batch.num_rows
                position = start + (stop - start) * rows_read // rows
                for document in batch.column(0).to_pylist():
                    if not isinstance(document, str | None):
                        kind = batch.schema.field(0).type
                        raise DataError(f"{file.path}: column {text_field!r} must hold strings, not {kind}")
                    for text, ends in _cut(_blocks(document or "")):
                        yield Piece(text=text, ends_document=ends, position=position)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file.path}: not a readable parquet file ({reason})") from error


def _row_groups(metadata: Any, start: int, stop: int) -> list[int]:
    """The row groups whose first page lies in bytes [start, stop)."""
    firsts = (metadata.row_group(group).column(0) for group in range(metadata.num_row_groups))
    offsets = [first.dictionary_page_offset or first.data_page_offset for first in firsts]
    return [group for group, offset in enumerate(offsets) if start <= offset < stop]


def _blocks(text: str) -> Iterator[str]:
    return (text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS))


def _cut(blocks: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yields (piece, whether it ends the document); the cuts do not depend on the size of the blocks."""
    rest, is_first = "", True
    for block in blocks:
        rest += block
        while len(rest) > PIECE_CHARS:
            end = rest.rfind("\n", 0, PIECE_CHARS) + 1 or PIECE_CHARS
            yield rest[:end], False
            rest, is_first = rest[end:], False
    if rest.strip() or not is_first:
        yield rest, True
