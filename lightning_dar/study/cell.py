"""One cell in a process of its own: `python -m lightning_dar.study.cell FOLDER RESULT`.

FOLDER is a `CellFolder` with config and identity. The run goes on from where it was, and is then measured. When its
standard input ends, because the process that started this one is gone, the run ends as on SIGTERM: it saves first.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from filelock import FileLock, Timeout
from lightning.pytorch.utilities import rank_zero_only

from lightning_dar.errors import DataError, TrainingError, UsageError
from lightning_dar.fit import lightning_cli
from lightning_dar.run.last import newest_in
from lightning_dar.study.folder import NOT_DONE, CellFolder
from lightning_dar.study.measure import measure
from lightning_dar.study.result import Result
from lightning_dar.text.manifest import read_json

LAST_SAVE_SECONDS = 120  # what an earlier process of this cell may take to save and end


def run_cell(folder: CellFolder, result_path: Path) -> int:
    """Trains until the end, measures, and writes the result; returns the exit status. Raises as `fit` does."""
    callback = ["--trainer.callbacks+=lightning_dar.study.progress.WriteProgress"]
    callback += [f"--trainer.callbacks.path={folder.progress}"]
    try:
        lightning_cli.run(["fit", "--config", str(folder.config), "--ckpt_path", "last", *callback])
    except SystemExit as stop:  # "all steps are done"
        if stop.code:
            raise
    if rank_zero_only.rank != 0:
        return 0
    asked = read_json(folder.identity)
    last = newest_in(folder.checkpoints)
    if last is None or last.steps < asked["identity"]["settings"]["trainer"]["max_steps"]:
        return NOT_DONE
    measured = measure(last, folder.run, folder.read_progress()[1])
    Result(**asked, status="finished", measured=measured).save(result_path)
    return 0


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):  # unbuffered: a buffered reader's lock would hold up the interpreter's end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    folder, result_path = CellFolder(Path(sys.argv[1])), Path(sys.argv[2])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    lock = FileLock(folder.lock, timeout=LAST_SAVE_SECONDS)
    try:
        if rank_zero_only.rank == 0:
            lock.acquire()
        sys.exit(run_cell(folder, result_path))
    except Timeout:
        sys.exit(f"error: {folder.path}: an earlier process still trains there; end it, or wait")
    except (UsageError, DataError, TrainingError) as error:
        sys.exit(f"error: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
