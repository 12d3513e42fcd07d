"""Checks of the data options that need no data, and what a `source` is."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from lightning_dar.errors import UsageError
from lightning_dar.text.bad_text import OnBadText
from lightning_dar.text.sources import is_text_url
from lightning_dar.text.tokenizer import check_spec
from lightning_dar.text.windows import is_url


def check_options(options: Mapping[str, Any]) -> None:
    """Raises UsageError for the first option whose value cannot work, naming it."""
    for name, least in (("batch_size", 1), ("seq_len", 1), ("num_workers", 0), ("seed", 0)):
        if options[name] < least:
            raise UsageError(f"data.{name}: {options[name]}; it must be at least {least}")
    for name in ("prepare_workers", "val_windows"):
        if options[name] is not None and options[name] < 1:
            raise UsageError(f"data.{name}: {options[name]}; it must be at least 1, or null")
    if options["seed"] >= 2**32:
        raise UsageError(f"data.seed: {options['seed']}; it must be below 2**32")
    if not 0 < options["val_fraction"] < 1:
        raise UsageError(f"data.val_fraction: {options['val_fraction']}; it must lie between 0 and 1")
    if not options["source"]:
        raise UsageError("data.source: empty; it must be stdlib, or name files, folders, globs or a URL")
    if options["bad_text"] not in get_args(OnBadText):
        raise UsageError(f"data.bad_text: {options['bad_text']!r}; it must be {' or '.join(get_args(OnBadText))}")
    check_spec(options["tokenizer"])


def existing_shards(sources: Sequence[str]) -> str | None:
    """The source if it is a folder or URL of token shards, None if it is text.

    Raises:
        UsageError: shards beside another source, or a single split where train/ and val/ are needed.
    """
    for source in sources:
        if is_text_url(source):
            continue
        one_split = Path(source, "index.json").exists() and any(Path(source).glob("chunk-*.bin"))
        if is_url(source) or one_split or Path(source, "train/index.json").exists():
            if len(sources) > 1:
                raise UsageError(f"data.source: {source} holds token shards; it cannot be one of several sources")
            if one_split:
                raise UsageError(f"data.source: {source} is one split; its parent needs train/ and val/, give that")
            return source.rstrip("/")
    return None


def default_dir(sources: Sequence[str], tokenizer: str) -> Path:
    return Path("data", f"{_slug('-'.join(sources))}-{_slug(tokenizer)}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
