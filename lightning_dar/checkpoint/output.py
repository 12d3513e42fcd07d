"""A folder that appears under its name only when it is complete."""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lightning_dar.errors import DataError, UsageError

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
    partial = output.with_name(f"{output.name}.partial")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove(partial)
        free = shutil.disk_usage(output.parent).free
        if free < num_bytes:
            raise DataError(
                f"disk full: {output} needs {num_bytes / 1e9:.2f} GB and {free / 1e9:.2f} GB are free; free some, or "
                "choose another disk"
            )
        partial.mkdir()
        yield partial
        put_in_place(partial, output, aside=output.with_name(f".{output.name}.old"))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(f"disk full while writing {output} ({error.strerror}); nothing was kept") from error
        raise DataError(f"{output}: cannot be written ({error})") from error
    finally:
        _remove(partial)


def put_in_place(partial: Path, output: Path, aside: Path) -> None:
    """Gives what is complete its name. A folder that has it now, which cannot be replaced in one step, is called
    `aside` on its way out."""
    taken = output.is_dir()
    if taken:
        _remove(aside)
        os.rename(output, aside)
    os.replace(partial, output)
    if taken:
        _remove(aside)


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    elif folder.is_dir():
        shutil.rmtree(folder)
