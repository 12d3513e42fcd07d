"""One cell in a process of its own: `python -m lightning_dar.study.cell FOLDER RESULT`.

FOLDER is a `CellFolder` with config and identity. The run goes on from where it was, and is then measured. When its
standard input ends, because the process that started this one is gone, the run ends as on SIGTERM: it saves first.
"""

import json
import math
import os
import platform
import re
import signal
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import lightning
import numpy as np
import torch
from filelock import FileLock, Timeout
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from lightning_dar.checkpoint.carried import tokenizer_of
from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.diagnostics.held_out import Subject, load_subject, validation_windows
from lightning_dar.diagnostics.losses import own_losses
from lightning_dar.diagnostics.routing import measure_reads
from lightning_dar.errors import DataError, TrainingError, UsageError
from lightning_dar.fit import lightning_cli
from lightning_dar.model.flops import model_flops
from lightning_dar.run.last import newest_in
from lightning_dar.run.parser import find_device
from lightning_dar.study.cells import Curve, Measured, Result, SiteSharpness
from lightning_dar.study.matrix import NOT_DONE, CellFolder
from lightning_dar.text.manifest import read_json

INTERVAL_SECONDS = 1.0


class WriteProgress(Callback):
    """Writes step and seconds spent to a small JSON file, about once a second.

    Args:
        path: the file, replaced each time.
    """

    def __init__(self, path: str):
        self.path = Path(path)
        self._before = 0.0  # seconds of the starts before this one
        self._started = self._written = monotonic()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = monotonic()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.is_global_zero and monotonic() - self._written > INTERVAL_SECONDS:
            self._write(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._write(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._before = state_dict["seconds"]

    def _seconds(self) -> float:
        return self._before + monotonic() - self._started

    def _write(self, trainer: Trainer) -> None:
        self._written = monotonic()
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"step": trainer.global_step, "seconds": self._seconds()}), encoding="utf-8")
        partial.replace(self.path)


CURVES = ("train/loss", "val/loss", "routing/sharpness")
RATE = "throughput/tokens_per_second"
POINTS = 200  # of a curve
ALL = 2**60  # tokens


def measure(checkpoint: Checkpoint, logs: Path, seconds: float) -> Measured:
    """Measures the last checkpoint of a run.

    Args:
        checkpoint: the run's last.
        logs: the folder of its TensorBoard events.
        seconds: time spent in training.

    Raises:
        DataError: a loss that is not finite, or data that are not there any more.
    """
    subject = load_subject(checkpoint, "cell", find_device("auto"))
    seq_len, steps = checkpoint.seq_len, checkpoint.content["global_step"]
    held_out = validation_windows(checkpoint, tokenizer_of(checkpoint), seq_len, ALL)
    losses, scalars = own_losses(subject, held_out), _scalars(logs)
    bytes_per_token = held_out.about["bytes_per_token"]
    train_tokens = steps * checkpoint.content["TextData"]["step_windows"] * seq_len
    return Measured(
        loss=losses.mean,
        bits_per_byte=None if bytes_per_token is None else losses.mean / (bytes_per_token * math.log(2)),
        unit=held_out.unit,
        unit_losses=losses.by_unit.tolist(),
        unit_tokens=held_out.unit_tokens.tolist(),
        parameters=sum(parameter.numel() for parameter in subject.model.parameters()),
        residual_parameters=sum(parameter.numel() for parameter in subject.model.residual.parameters()),
        steps=steps,
        train_tokens=train_tokens,
        train_flops=train_tokens * model_flops(subject.model.config, seq_len),
        tokens_per_second=float(np.median(scalars[RATE].values)) if RATE in scalars else None,
        seconds=seconds,
        sharpness=_sharpness(subject, held_out),
        curves={name: thinned(scalars[name], POINTS) for name in CURVES if name in scalars},
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "lightning": lightning.__version__,
            "processor": processor(),
        },
    )


def processor() -> str:
    """The processor and its vector instructions as torch uses them, on which the last bits of a loss depend."""
    try:
        names = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        names = None
    name = names.group(1) if names else platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def thinned(curve: Curve, points: int) -> Curve:
    """At most `points` points: means over consecutive runs of the curve, each at its last step."""
    if len(curve.steps) <= points:
        return curve
    parts = np.array_split(np.arange(len(curve.steps)), points)
    return Curve(
        steps=[curve.steps[part[-1]] for part in parts],
        values=[float(np.mean(np.asarray(curve.values)[part])) for part in parts],
    )


def _sharpness(subject: Subject, held_out) -> list[SiteSharpness]:
    if not subject.routes:
        return []
    reads = measure_reads(subject, held_out, lambda windows: None)
    return [
        SiteSharpness(site=site, num_sources=reads.stream[site].num_sources, sharpness=float(routing.sharpness))
        for site, routing in reads.routing.items()
    ]


def _scalars(logs: Path) -> dict[str, Curve]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(logs), size_guidance={"scalars": 0})
    events.Reload()
    curves = {}
    for name in events.Tags()["scalars"]:
        logged = {event.step: event.value for event in events.Scalars(name)}  # what was done again counts once
        if not all(math.isfinite(value) for value in logged.values()):
            raise DataError(f"{logs}: {name} is not finite at some step")
        curves[name] = Curve(steps=sorted(logged), values=[logged[step] for step in sorted(logged)])
    return curves


LAST_SAVE_SECONDS = 120  # what an earlier process of this cell may take to save and end


def run_cell(folder: CellFolder, result_path: Path) -> int:
    """Trains until the end, measures, and writes the result; returns the exit status. Raises as `fit` does."""
    callback = ["--trainer.callbacks+=lightning_dar.study.cell.WriteProgress"]
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
