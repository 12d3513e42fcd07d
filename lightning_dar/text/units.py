"""Where a source is cut for preparation in parts.

A unit is a run of whole documents of about `UNIT_BYTES`: several files, or a range of a large .jsonl (by lines) or
.parquet file (by row groups); other files stay whole. Units depend on the source alone. Each gets chunks of its own,
so that the shards are the same whether one process prepares all units or many prepare some each.
"""

import heapq
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from lightning_dar.errors import UsageError
from lightning_dar.text.sources import SourceFile

UNIT_BYTES = 128 * 2**20  # a few chunks of tokens: little is lost at their ends, and a large source has many units
_CUT_ENDINGS = (".jsonl", ".parquet")


class Slice(NamedTuple):
    """What begins in the bytes [start, stop) of a file."""

    file: SourceFile
    start: int
    stop: int


class Part(NamedTuple):
    """Part `number` (from 1) of `count`."""

    number: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.number}-of-{self.count}"


def parse_part(text: str) -> Part:
    """`3/8`. Raises UsageError."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    part = Part(int(match[1]), int(match[2])) if match else Part(0, 0)
    if not 1 <= part.number <= part.count:
        raise UsageError(f"--shard {text}: i/n is needed, the i-th of n parts, such as 1/8 to 8/8")
    return part


def plan_units(files: Sequence[SourceFile]) -> list[list[Slice]]:
    units: list[list[Slice]] = []
    room = -1
    for piece in _slices(files):
        size = piece.stop - piece.start
        if size > room:
            units.append([])
            room = UNIT_BYTES
        units[-1].append(piece)
        room -= size
    return units


def _slices(files: Sequence[SourceFile]) -> Iterator[Slice]:
    for file in files:
        count = max(1, -(-file.size // UNIT_BYTES)) if file.name.lower().endswith(_CUT_ENDINGS) else 1
        bounds = [number * file.size // count for number in range(count + 1)]
        for start, stop in pairwise(bounds):
            yield Slice(file, start, stop)


def deal_units(sizes: Sequence[int], part: Part) -> list[int]:
    """The units of a part, ascending: the largest are dealt first, each to the part with the fewest bytes so far.

    Raises:
        UsageError: more parts than units.
    """
    if part.count > len(sizes):
        raise UsageError(
            f"--shard {part.number}/{part.count}: the source has {len(sizes)} unit(s) of up to "
            f"{UNIT_BYTES // 2**20} MiB, files that cannot be cut stay whole; give at most {len(sizes)} parts"
        )
    parts = [(0, number) for number in range(1, part.count + 1)]  # already a heap
    mine = []
    for unit in sorted(range(len(sizes)), key=lambda unit: -sizes[unit]):
        dealt, number = heapq.heappop(parts)
        heapq.heappush(parts, (dealt + sizes[unit], number))
        if number == part.number:
            mine.append(unit)
    return sorted(mine)
