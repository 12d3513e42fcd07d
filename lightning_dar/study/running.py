"""Running the cells of a study, several at a time, with a live table."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout
from lightning.pytorch.cli import LightningArgumentParser
from rich.live import Live
from rich.table import Table

from lightning_dar.errors import UsageError
from lightning_dar.fit.lightning_cli import RoutedTrainer
from lightning_dar.run.parser import OneLine, add_plugins, use_plugins
from lightning_dar.study.cells import (
    PACKAGE,
    Result,
    data_identity,
    identity_of,
    plugins_of,
    read_result,
    refuse_to_mix,
)
from lightning_dar.study.matrix import NOT_DONE, Cell
from lightning_dar.text import TextData
from lightning_dar.training import LanguageModel


@dataclass
class State:
    """The state of a study: each cell is in one of `results`, `running` or `left`."""

    cells: Sequence[Cell]
    results: dict[str, Result] = field(default_factory=dict)
    running: dict[str, subprocess.Popen] = field(default_factory=dict)
    left: list[Cell] = field(default_factory=list)
    jobs: int = 1

    def seconds_left(self) -> float | None:
        """Estimate from the seconds per step of each cell's variant, or of all where that has not run yet."""
        by_variant: dict[str, list[float]] = {}
        for cell in self.cells:
            steps, seconds = self._spent(cell)
            if steps:
                by_variant.setdefault(cell.variant, []).append(seconds / steps)
        if not by_variant:
            return None
        means = {variant: sum(rates) / len(rates) for variant, rates in by_variant.items()}
        usual = sum(means.values()) / len(means)
        open_cells = [cell for cell in self.cells if cell.name not in self.results]
        seconds = [
            (cell.max_steps - cell.folder.read_progress()[0]) * means.get(cell.variant, usual) for cell in open_cells
        ]
        return max(sum(seconds) / self.jobs, max(seconds, default=0.0))

    def _spent(self, cell: Cell) -> tuple[int, float]:
        result = self.results.get(cell.name)
        if result is not None and result.measured is not None:
            return result.measured.steps, result.measured.seconds
        return cell.folder.read_progress()


class _RaisingParser(OneLine, LightningArgumentParser):
    """Raises what is wrong instead of ending the process."""

    def exit(self, status: int = 0, message: str | None = None) -> None:
        raise UsageError((message or "").removeprefix("error: ").removesuffix(" (--help lists the options)\n"))


def check_settings(cells: Sequence[Cell]) -> None:
    """Parses the settings of every variant, and builds its network without weights.

    Raises:
        UsageError: settings that `fit` would refuse; names the variant.
        DataError: a checkpoint to start from that cannot be opened.
    """
    parser = _settings_parser()
    for cell in {cell.variant: cell for cell in cells}.values():
        try:
            use_plugins(plugins_of(cell.settings))
            settings = parser.parse_object(cell.settings)
            LanguageModel(**settings.model.as_dict())
        except UsageError as error:
            raise UsageError(f"variants.{cell.variant}: {error}") from error


def _settings_parser() -> LightningArgumentParser:
    parser = _RaisingParser()
    parser.add_argument("--seed_everything", type=int)
    parser.add_lightning_class_args(RoutedTrainer, "trainer")
    parser.add_lightning_class_args(LanguageModel, "model")
    parser.add_lightning_class_args(TextData, "data")
    add_plugins(parser)
    return parser


class Lines:
    """Shows a study where no terminal is: one line for each cell that starts or ends."""

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
    """Shows a study on a terminal: a row for each variant, a column for each seed."""

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


POLL_SECONDS = 0.5
ENDING_SECONDS = 120  # what a cell may take to save and end


def open_study(cells: Sequence[Cell], jobs: int, retry: bool) -> State:
    """What of the study is there already, and what is left.

    Args:
        cells: all of them.
        jobs: cells at a time.
        retry: whether cells that have failed are left to be run again.

    Raises:
        UsageError: a cell that was made otherwise than it would be now.
        DataError: data that cannot be prepared, or a damaged result.
    """
    data: dict[str, dict[str, Any]] = {}
    state = State(cells=cells, jobs=jobs)
    for cell in cells:
        key = json.dumps({name: value for name, value in cell.settings["data"].items() if name != "seed"})
        if key not in data:
            data[key] = data_identity(cell.settings["data"])
        identity = identity_of(cell, data[key])
        if cell.result_path.exists():
            result = read_result(cell.result_path)
            refuse_to_mix(cell.name, result.identity, identity)
            if result.status == "finished" or not retry:
                state.results[cell.name] = result
                continue
        elif cell.folder.identity.exists():
            refuse_to_mix(cell.name, json.loads(cell.folder.identity.read_text(encoding="utf-8"))["identity"], identity)
        _lay_out(cell, identity)
        state.left.append(cell)
    return state


def run_cells(state: State, changed: Callable[[State], None]) -> None:
    """Runs what is left, `state.jobs` cells at a time; `changed` is called at every look, twice a second.

    A cell that fails becomes a result that says so. Interrupted, it ends its cells as on SIGTERM: they save first.

    Raises:
        UsageError: a cell that was interrupted from elsewhere: the study goes on when it is started again.
    """
    try:
        while state.left or state.running:
            while state.left and len(state.running) < state.jobs:
                cell = state.left.pop(0)
                state.running[cell.name] = _start(cell)
            changed(state)
            time.sleep(POLL_SECONDS)
            _collect(state)
        changed(state)
    finally:
        _end(list(state.running.values()))


@contextmanager
def alone_in(output: Path) -> Iterator[None]:
    """Holds the study's folder. Raises UsageError where another process does."""
    output.mkdir(parents=True, exist_ok=True)
    lock = FileLock(output / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(f"output={output}: another study runs in this folder; wait for it, or give another") from error
    try:
        yield
    finally:
        lock.release()


def _lay_out(cell: Cell, identity: dict[str, Any]) -> None:
    cell.folder.path.mkdir(parents=True, exist_ok=True)
    cell.folder.config.write_text(yaml.safe_dump(cell.settings, sort_keys=False), encoding="utf-8")
    asked = {"variant": cell.variant, "seed": cell.seed, "identity": identity}
    cell.folder.identity.write_text(json.dumps(asked), encoding="utf-8")


def _start(cell: Cell) -> subprocess.Popen:
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(cell.threads),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
    command = [sys.executable, "-m", "lightning_dar.study.cell", str(cell.folder.path), str(cell.result_path)]
    with cell.folder.log.open("ab") as log:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,  # ends with this process, whatever ends it
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is this process's to pass on
        )


def _collect(state: State) -> None:
    """Takes the results of cells that have ended."""
    by_name = {cell.name: cell for cell in state.cells}
    for name, process in list(state.running.items()):
        status, cell = process.poll(), by_name[name]
        if status is None:
            continue
        del state.running[name]
        if status == NOT_DONE:
            raise UsageError(f"{name}: its run was interrupted and has saved; start the study again to go on")
        if status != 0:
            asked = json.loads(cell.folder.identity.read_text(encoding="utf-8"))
            Result(**asked, status="failed", error=_reason(cell, status)).save(cell.result_path)
        state.results[name] = read_result(cell.result_path)


def _reason(cell: Cell, status: int) -> str:
    if status == -signal.SIGKILL:
        return "its process was killed (SIGKILL); often memory has run out"
    if status < 0:
        return f"its process was ended by signal {-status}: {cell.folder.last_line()}"
    return cell.folder.last_line() or f"its process ended with status {status}"


def _end(processes: Sequence[subprocess.Popen]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
