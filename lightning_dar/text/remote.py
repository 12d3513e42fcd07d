"""Text behind a URL, through fsspec: hf://, s3://, gs:// and every other file system that is installed."""

import glob
import io
from collections.abc import Iterator
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
            root, found = _before_magic(path), filesystem.glob(path, detail=True)
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


def _before_magic(path: str) -> str:
    folders = []
    for folder in path.split("/"):
        if glob.has_magic(folder):
            break
        folders.append(folder)
    return "/".join(folders)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
