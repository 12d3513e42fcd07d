"""The files of a source: folders, globs and URLs (hf://, s3:// and whatever fsspec reads), and the standard library."""

import glob
import hashlib
import io
import json
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lightning_dar.errors import DataError

_READ_AHEAD = 2**20  # bytes
_CONTENT_TAGS = (
    "ETag",
    "etag",
    "blob_id",
    "md5Hash",
)  # by which S3, Azure, the Hugging Face hub and Google name a content


class RemoteFile(NamedTuple):
    url: str
    name: str  # relative to the folder, or to the fixed part of the glob, that was given
    size: int  # bytes
    content_tag: str | None  # changes with the content; None where the file system has no such thing


def list_files(url: str) -> Iterator[RemoteFile]:
    """The file, or the files of the folder (recursive) or glob, that `url` names.

    Raises:
        DataError: names the URL, and the package to install where its file system needs one.
    """
    filesystem, path = _open_filesystem(url)
    try:
        if glob.has_magic(path):
            root, found = _fixed_part(path), filesystem.glob(path, detail=True)
        elif filesystem.isfile(path):
            root, found = path.rpartition("/")[0], {path: filesystem.info(path)}
        else:
            root, found = path, filesystem.find(path, detail=True)
    except Exception as error:  # each storage client raises its own kinds
        raise DataError(f"data.source: {url} cannot be listed ({_reason(error)})") from error
    for name, info in found.items():
        if info["type"] == "file":
            relative = name.removeprefix(root).lstrip("/")
            tag = next((str(info[key]) for key in _CONTENT_TAGS if info.get(key)), None)
            yield RemoteFile(filesystem.unstrip_protocol(name), relative, info["size"], tag)


def open_file(url: str) -> BinaryIO:
    """Seekable and buffered. Raises DataError, naming the URL."""
    filesystem, path = _open_filesystem(url)
    try:
        return io.BufferedReader(filesystem.open(path, "rb"), _READ_AHEAD)
    except Exception as error:
        raise DataError(f"data.source: {url} cannot be opened ({_reason(error)})") from error


def _open_filesystem(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except Exception as error:  # "Install s3fs to access S3", credentials that are missing, an unknown protocol
        raise DataError(f"data.source: {url} cannot be read on this machine ({_reason(error)})") from error


def _fixed_part(path: str) -> str:
    folders = []
    for folder in path.split("/"):
        if glob.has_magic(folder):
            break
        folders.append(folder)
    return "/".join(folders)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


TEXT_ENDINGS = (".txt", ".md", ".py", ".txt.gz", ".txt.zst")
ENDINGS = (*TEXT_ENDINGS, ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")

_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_GENERATED_FOLDERS = {"encodings", "pydoc_data"}
_GENERATED_FILES = {"html/entities.py", "locale.py", "re/_casefix.py", "stringprep.py", "token.py"}
"""Tables that the tools of CPython write; a small model would learn hexadecimal from them, not Python. `_stdlib_files`
also leaves out `_sysconfigdata*.py`, the settings that CPython was built with."""
_SAMPLED_BYTES = 8 * 2**20  # files above this size are fingerprinted by three samples
_SAMPLE_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of the source; `name` is relative to the folder given, hence the same on every machine.

    `content_tag` stands for the content of a remote file whose file system has one.
    """

    name: str
    path: str  # or URL
    size: int  # bytes
    content_tag: str | None = None

    def open(self) -> BinaryIO:
        return open_file(self.path) if "://" in self.path else Path(self.path).open("rb")


def is_text_url(source: str) -> bool:
    """A URL of text, not of token shards: it ends like a file of text, is a glob, or lies where shards cannot."""
    named = glob.has_magic(source) or source.lower().endswith(ENDINGS)
    return "://" in source and (named or source.startswith("hf://"))


def find_files(source: Sequence[str]) -> list[SourceFile]:
    """Resolves `stdlib` (the running Python's own library, without its tests and the tables that programs wrote),
    files, folders (recursive, hidden entries left out), globs and URLs, sorted by name.

    Raises:
        DataError: an entry that does not exist, matches no file, or is a file of a kind we cannot read.
    """
    found: dict[str, SourceFile] = {}
    for entry in source:
        for file in _remote_files(entry) if "://" in entry else _local_files(entry):
            found.setdefault(file.path, file)
    return sorted(found.values(), key=lambda file: (file.name, file.path))


def _remote_files(entry: str) -> Iterator[SourceFile]:
    files = [file for file in list_files(entry) if _is_text(Path(file.name))]
    if not files:
        raise DataError(f"data.source: {entry} holds no file that ends in {' '.join(ENDINGS)}")
    for file in files:
        yield SourceFile(name=file.name, path=file.url, size=file.size, content_tag=file.content_tag)


def _local_files(entry: str) -> Iterator[SourceFile]:
    for path, name in _stdlib_files() if entry == "stdlib" else _entry_files(entry):
        yield SourceFile(name=name, path=str(path.resolve()), size=path.stat().st_size)


def _stdlib_files() -> Iterator[tuple[Path, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in root.rglob("*.py"):
        name, parts = path.relative_to(root).as_posix(), path.relative_to(root).parts
        left_out = _NOT_LIBRARY | _GENERATED_FOLDERS
        if any(part in left_out or part.startswith(("config-", "_sysconfigdata")) for part in parts):
            continue
        if name not in _GENERATED_FILES:
            yield path, name


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
    chosen = [(file, name.as_posix()) for file, name in named if _is_text(name) and file.is_file()]
    if not chosen:
        raise DataError(f"data.source: {entry} holds no file that ends in {' '.join(ENDINGS)}; stdlib needs no files")
    yield from chosen


def _is_text(name: Path) -> bool:
    """Whether a file is of a kind that can be read, and not hidden."""
    return name.name.lower().endswith(ENDINGS) and not any(part.startswith(".") for part in name.parts)


def _before_magic(path: Path) -> Iterator[str]:
    for part in path.parts:
        if glob.has_magic(part):
            return
        yield part


def fingerprint(files: Iterable[SourceFile]) -> str:
    """sha256 over the sorted (name, size, content hash) of the files.

    The content hash covers the whole file, or the first, middle and last MiB of a file above 8 MiB: a fresh
    copy of the same data has the same fingerprint, and 100 GB are told apart in seconds. Of a remote file it is
    what its file system keeps of the content.
    """
    rows = sorted((file.name, file.size, _content_hash(file)) for file in files)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _content_hash(file: SourceFile) -> str:
    if file.content_tag is not None:
        return file.content_tag
    with file.open() as stream:
        if file.size <= _SAMPLED_BYTES:
            return hashlib.sha256(stream.read()).hexdigest()
        digest = hashlib.sha256()
        for offset in (0, (file.size - _SAMPLE_BYTES) // 2, file.size - _SAMPLE_BYTES):
            stream.seek(offset)
            digest.update(stream.read(_SAMPLE_BYTES))
        return digest.hexdigest()
