"""Lines that tell of a choice that the program has made."""

import sys

from lightning.pytorch.utilities import rank_zero_only


@rank_zero_only
def notice(line: str) -> None:
    """On stderr, once for all processes."""
    print(line, file=sys.stderr)
