"""What a run says: lines on its own choices, and which of other packages' lines are left out."""

import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.utilities import rank_zero_only

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
    # in mixed precision parameters stay in fp32: gains beside inputs of bf16, and the size that is said
    {"category": UserWarning, "message": r"Mismatch dtype between input and weight: .* weight dtype = float"},
    {"category": UserWarning, "message": r"Precision (bf)?16-mixed is not supported by the model summary"},
    # a run that starts from another's checkpoint has a folder of its own
    {"category": UserWarning, "message": r"The dirpath has changed from .* won't be reloaded"},
    # it holds the run's own lock, and what it has saved where it goes on; another run's is refused
    {"category": UserWarning, "message": r"(Checkpoint|Experiment logs) directory .* exists and is not empty"},
)
ADVERTISEMENT = re.compile("💡 Tip: ")
LIGHTNINGS_LOG = "lightning.pytorch.utilities.rank_zero"


@rank_zero_only
def notice(line: str) -> None:
    """Prints a line on a choice that the program has made, on stderr, once for all processes."""
    print(line, file=sys.stderr)


@contextmanager
def quiet() -> Iterator[None]:
    """Leaves out lines of other packages that a user can do nothing about, each by its own words."""
    log = logging.getLogger(LIGHTNINGS_LOG)
    with warnings.catch_warnings():
        for known in WARNINGS:
            warnings.filterwarnings("ignore", **known)
        log.addFilter(_is_no_advertisement)
        try:
            yield
        finally:
            log.removeFilter(_is_no_advertisement)


def _is_no_advertisement(record: logging.LogRecord) -> bool:
    return not ADVERTISEMENT.match(record.getMessage())
