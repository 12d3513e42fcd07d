"""Leaves out the lines of other packages that a user can do nothing about, each by its own words."""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

WARNINGS = (
    # Lightning's calls of functions that jsonargparse and torch are about to drop
    {
        "category": DeprecationWarning,
        "module": r"lightning\.pytorch\.cli",
        "message": r"(?s).*JSONARGPARSE_DEPRECATION",
    },
    {"category": DeprecationWarning, "module": r"lightning\.pytorch\.cli", "message": r"(?s).*was deprecated in v4"},
    {
        "category": FutureWarning,
        "module": r"lightning\.pytorch\.utilities\._pytree",
        "message": r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    },
    # windows are slices of a memory map, which no worker makes faster
    {"category": UserWarning, "message": r"The '\w+' does not have many workers which may be a bottleneck"},
)
NOT_EMPTY = {"category": UserWarning, "message": r"Checkpoint directory .* exists and is not empty"}
ADVERTISEMENT = re.compile("💡 Tip: ")
LIGHTNINGS_LOG = "lightning.pytorch.utilities.rank_zero"


@contextmanager
def quiet() -> Iterator[None]:
    log = logging.getLogger(LIGHTNINGS_LOG)
    with warnings.catch_warnings():
        for known in WARNINGS:
            warnings.filterwarnings("ignore", **known)
        log.addFilter(_is_no_advertisement)
        try:
            yield
        finally:
            log.removeFilter(_is_no_advertisement)


def expect_checkpoints() -> None:
    """The run goes on: its folder of checkpoints is not empty. To be called inside `quiet`."""
    warnings.filterwarnings("ignore", **NOT_EMPTY)


def _is_no_advertisement(record: logging.LogRecord) -> bool:
    return not ADVERTISEMENT.match(record.getMessage())
