"""Which files a `source` names, their fingerprint, and their text as a stream of pieces.

A text file (.txt .md .py), a line of a .jsonl or .jsonl.gz file and a row of a .parquet file are one
document each. Documents longer than `PIECE_CHARS` characters come in pieces cut at line ends, so that one
long file can still be split into train and validation, and so that no file is ever held in memory whole.
"""

import glob
import gzip
import hashlib
import json
import sysconfig
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_dar.errors import DataError

TEXT_ENDINGS = (".txt", ".md", ".py")
ENDINGS = (*TEXT_ENDINGS, ".jsonl", ".jsonl.gz", ".parquet")
PIECE_CHARS = 2**16

_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_SAMPLED_BYTES = 8 * 2**20  # files above this size are fingerprinted by three samples
_SAMPLE_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of the source; `name` is relative to the folder given, hence the same on every machine."""

    name: str
    path: Path
    size: int  # bytes


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A document, or a part of a long one. `position` counts the bytes of its file read so far."""

    text: str
    ends_document: bool
    position: int


def find_files(source: Sequence[str]) -> list[SourceFile]:
    """Resolves `stdlib`, files, folders (recursive, hidden entries left out) and globs, sorted by name.

    Raises:
        DataError: an entry that does not exist, matches no file, or is a file of a kind we cannot read.
    """
    found: dict[Path, str] = {}
    for entry in source:
        for path, name in _stdlib_files() if entry == "stdlib" else _entry_files(entry):
            found.setdefault(path.resolve(), name)
    files = [SourceFile(name=name, path=path, size=path.stat().st_size) for path, name in found.items()]
    return sorted(files, key=lambda file: (file.name, file.path))


def _stdlib_files() -> Iterator[tuple[Path, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        if not any(part in _NOT_LIBRARY or part.startswith("config-") for part in parts):
            yield path, path.relative_to(root).as_posix()


def _entry_files(entry: str) -> Iterator[tuple[Path, str]]:
    path = Path(entry).expanduser()
    if path.is_file():
        if not path.name.lower().endswith(ENDINGS):
            raise DataError(f"data.source: {entry} is none of the kinds {' '.join(ENDINGS)}")
        yield path, path.name
        return
    if path.is_dir():
        root, candidates = path, path.rglob("*")
    elif glob.has_magic(entry):
        root = Path(*_before_magic(path))
        candidates = map(Path, glob.glob(str(path), recursive=True))
    else:
        raise DataError(
            f"data.source: {entry} does not exist; give a file, a folder, a glob, or stdlib, which every machine has"
        )
    named = [(file, file.relative_to(root)) for file in candidates]
    chosen = [
        (file, name.as_posix())
        for file, name in named
        if name.name.lower().endswith(ENDINGS)
        and not any(part.startswith(".") for part in name.parts)
        and file.is_file()
    ]
    if not chosen:
        raise DataError(f"data.source: {entry} holds no file that ends in {' '.join(ENDINGS)}; stdlib needs no files")
    yield from chosen


def _before_magic(path: Path) -> Iterator[str]:
    for part in path.parts:
        if glob.has_magic(part):
            return
        yield part


def fingerprint(files: Iterable[SourceFile]) -> str:
    """sha256 over the sorted (name, size, content hash) of the files.

    The content hash covers the whole file, or the first, middle and last MiB of a file above 8 MiB: a fresh
    copy of the same data has the same fingerprint, and 100 GB are told apart in seconds.
    """
    rows = sorted((file.name, file.size, _content_hash(file)) for file in files)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _content_hash(file: SourceFile) -> str:
    with file.path.open("rb") as stream:
        if file.size <= _SAMPLED_BYTES:
            return hashlib.sha256(stream.read()).hexdigest()
        digest = hashlib.sha256()
        for offset in (0, (file.size - _SAMPLE_BYTES) // 2, file.size - _SAMPLE_BYTES):
            stream.seek(offset)
            digest.update(stream.read(_SAMPLE_BYTES))
        return digest.hexdigest()


def read_pieces(file: SourceFile, text_field: str) -> Iterator[Piece]:
    """Streams the documents of one file; documents with nothing but white space are left out.

    Bytes of a text file that are not UTF-8 become U+FFFD (some library sources are Latin-1).

    Raises:
        DataError: names the file, and the line of a .jsonl, that cannot be read or lacks `text_field`.
    """
    name = file.path.name.lower()
    if name.endswith(TEXT_ENDINGS):
        return _read_text(file)
    if name.endswith(".parquet"):
        return _read_parquet(file, text_field)
    return _read_jsonl(file, text_field)


def _read_text(file: SourceFile) -> Iterator[Piece]:
    with file.path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        for text, ends in _cut(iter(lambda: stream.read(PIECE_CHARS), "")):
            yield Piece(text=text, ends_document=ends, position=stream.buffer.tell())


def _read_jsonl(file: SourceFile, text_field: str) -> Iterator[Piece]:
    with file.path.open("rb") as raw:
        lines = gzip.GzipFile(fileobj=raw) if file.path.name.lower().endswith(".gz") else raw
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    document = _jsonl_text(line, text_field, where=f"{file.path}:{number}")
                    for text, ends in _cut(_blocks(document)):
                        yield Piece(text=text, ends_document=ends, position=raw.tell())
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{file.path}: cannot be decompressed ({error})") from error


def _jsonl_text(line: bytes, text_field: str, where: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a JSON object is needed, got {type(row).__name__}")
    if text_field not in row:
        raise DataError(f"{where}: no field {text_field!r} (data.text_field); there is {', '.join(row) or 'none'}")
    text = row[text_field]
    if not isinstance(text, str):
        raise DataError(f"{where}: field {text_field!r} must be a string, got {type(text).__name__}")
    return text.encode("utf-8", "replace").decode("utf-8")  # JSON may hold lone surrogates, UTF-8 may not


def _read_parquet(file: SourceFile, text_field: str) -> Iterator[Piece]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file.path) as table:
            columns = table.schema_arrow.names
            if text_field not in columns:
                there = ", ".join(columns)
                raise DataError(f"{file.path}: no column {text_field!r} (data.text_field); there is {there}")
            rows_read = 0
            for batch in table.iter_batches(batch_size=1024, columns=[text_field]):
                rows_read += batch.num_rows
                position = file.size * rows_read // table.metadata.num_rows
                for document in batch.column(0).to_pylist():
                    if not isinstance(document, str | None):
                        kind = batch.schema.field(0).type
                        raise DataError(f"{file.path}: column {text_field!r} must hold strings, not {kind}")
                    for text, ends in _cut(_blocks(document or "")):
                        yield Piece(text=text, ends_document=ends, position=position)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{file.path}: not a readable parquet file ({reason})") from error


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
