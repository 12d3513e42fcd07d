"""A folder that appears under its name only when it is complete."""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lightning_dar.errors import DataError, UsageError

PARTIAL = ".partial"
MODEL_MARKS = ("config.json", "lightning_dar.json")  # what a folder of ours, or of transformers, holds


def check_output(
    output: Path,
    source: Path,
    overwrite: bool,
    *,
    marks: Sequence[str] = MODEL_MARKS,
    kind: str = "converted model",
) -> None:
    """Raises UsageError for an output that is in the way, or that must not be replaced: only a folder that holds one
    of `marks`, and so is a `kind`, may be."""
    if source.resolve().is_relative_to(output.resolve()) or output.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"--output {output}: the source lies there; choose another place")
    if not output.exists():
        return
    if not overwrite:
        raise UsageError(f"--output {output}: exists already; choose another place, or --overwrite it")
    if not output.is_dir() or not any((output / mark).is_file() for mark in marks):
        raise UsageError(f"--output {output}: exists and is no {kind}; choose another place")


@contextmanager
def new_folder(output: Path, num_bytes: int) -> Iterator[Path]:
    """A folder beside `output` to fill with about `num_bytes`, renamed to it at the end and removed on any error.

    Raises:
        DataError: the disk is full, or cannot be written.
    """
    partial = partial_of(output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        remove(partial)
        free = shutil.disk_usage(output.parent).free
        if free < num_bytes:
            raise DataError(
                f"disk full: {output} needs {num_bytes / 1e9:.2f} GB and {free / 1e9:.2f} GB are free; free some, or "
                "choose another disk"
            )
        partial.mkdir()
        yield partial
        put_in_place(partial, output)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(f"disk full while writing {output} ({error.strerror}); nothing was kept") from error
        raise DataError(f"{output}: cannot be written ({error})") from error
    finally:
        remove(partial)


def put_in_place(partial: Path, output: Path) -> None:
    """Gives what is complete its name, in place of a file, a link or a folder that has it now."""
    if not output.is_dir() and not partial.is_dir():
        os.replace(partial, output)
        return
    before = partial_of(output.with_name(f"{output.name}.before"))  # folders cannot be replaced in one step
    remove(before)
    if os.path.lexists(output):
        os.rename(output, before)
    os.rename(partial, output)
    remove(before)


def partial_of(path: Path) -> Path:
    """The name of what is not complete yet, or not any more: hidden, so that it is nobody else's."""
    return path.with_name(f".{path.name}{PARTIAL}")


def remove(path: Path) -> None:
    """A file, a link or a folder, if it is there and goes."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # several ranks may tidy up at once
    else:
        with suppress(OSError):
            path.unlink()
