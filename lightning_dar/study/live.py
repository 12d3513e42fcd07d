"""The table of a study that runs: what is done, running and left, and for how long."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.live import Live
from rich.table import Table

from lightning_dar.study.matrix import Cell
from lightning_dar.study.running import State


class Lines:
    """Where no terminal is: one line for each cell that starts or ends."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def show(self, state: State) -> None:
        for cell in state.cells:
            status = _status(state, cell)
            kind = status.split()[0]
            if kind != "left" and (cell.name, kind) not in self._said:
                self._said.add((cell.name, kind))
                print(f"{cell.name}: {status if kind != 'running' else kind}  ({_counts(state)})", flush=True)


class LiveTable:
    """On a terminal: a row for each variant, a column for each seed."""

    def __init__(self, live: Live):
        self._live = live

    def show(self, state: State) -> None:
        self._live.update(_table(state))


@contextmanager
def progress_display() -> Iterator[Lines | LiveTable]:
    """`show(state)` shows where the cells are."""
    if not sys.stdout.isatty():
        yield Lines()
        return
    with Live(auto_refresh=False, transient=False) as live:
        table = LiveTable(live)
        live.auto_refresh = True
        yield table


def _table(state: State) -> Table:
    seeds = list(dict.fromkeys(cell.seed for cell in state.cells))
    cells = {(cell.variant, cell.seed): cell for cell in state.cells}
    table = Table("variant", *(f"seed {seed}" for seed in seeds), title=_counts(state))
    for variant in dict.fromkeys(cell.variant for cell in state.cells):
        own = [cells.get((variant, seed)) for seed in seeds]
        table.add_row(variant, *("" if cell is None else _status(state, cell) for cell in own))
    return table


def _status(state: State, cell: Cell) -> str:
    result = state.results.get(cell.name)
    if result is not None:
        return f"loss {result.measured.loss:.4f}" if result.measured else f"failed {result.error}"
    if cell.name in state.running:
        return f"running {cell.folder.read_progress()[0] / cell.max_steps:.0%}"
    return "left"


def _counts(state: State) -> str:
    failed = sum(result.status == "failed" for result in state.results.values())
    counts = f"{len(state.results) - failed} of {len(state.cells)} cells done, {failed} failed, "
    counts += f"{len(state.running)} running, {len(state.left)} left"
    seconds = state.seconds_left()
    return counts if seconds is None else f"{counts}, about {timedelta(seconds=round(seconds))} to go"
