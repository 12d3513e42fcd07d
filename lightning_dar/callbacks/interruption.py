"""Ending a run when the system asks it to stop, so that it goes on later as if nothing had happened."""

import os
import re
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from lightning_dar.files import remove
from lightning_dar.run.saving import checkpoint_folder, model_checkpoint

INTERRUPTED_FILE = "interrupted.ckpt"
REQUEUE_SIGNAL = getattr(signal, "SIGUSR1", None)  # not on Windows
LAST_WORDS_SECONDS = 10.0  # for processes that are about to end by an error of their own, which is to be seen


class Interruption(Callback):
    """Ends a run on SIGTERM and SIGUSR1: finishes the optimizer step, saves `interrupted.ckpt` beside the other
    checkpoints, and ends every process with status 0; `--ckpt_path last` goes on from there. A signal to one process is
    enough; one that comes while the model is set up waits for the first step, one during a validation for its end.

    SIGTERM is what a system sends that starts the job again by itself, or not at all. SIGUSR1 is what a SLURM job asks
    for ahead of its time limit (`#SBATCH --signal=SIGUSR1@300`): the job is then also put back into the queue.

    It takes the place of Lightning's own handlers, which save inside the handler, in the middle of a step. Where a
    process ends by an error it also ends those that it has started: they would wait for it in vain.

    Args:
        requeue: on SIGUSR1 in a SLURM job, `scontrol requeue` it.
    """

    def __init__(self, requeue: bool = True):
        self.requeue = requeue
        self._received: set[int] = set()
        self._steps_seen = 0
        self._stopping = self._active = False
        self._path: str | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._received, self._stopping, self._active = set(), False, stage == "fit"
        saving = [callback for callback in trainer.callbacks if isinstance(callback, Checkpoint)]
        others = [callback for callback in trainer.callbacks if callback not in (self, *saving)]
        trainer.callbacks = [*others, self, *saving]  # so that what it saves has what the others do at the same step
        if self._active:
            self._take_signals(trainer)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._take_signals(trainer)  # again: Lightning has set its own since

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._steps_seen = trainer.global_step
        self._take_signals(trainer)  # again: there may have been no sanity check

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._active = False

    def _take_signals(self, trainer: Trainer) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # which alone may set handlers
        handler = partial(self._receive, os.getpid(), trainer)
        for number in (signal.SIGTERM, REQUEUE_SIGNAL):
            if number is not None:
                signal.signal(number, handler)

    def _receive(self, owner: int, trainer: Trainer, number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner or self._stopping:
            return  # in a worker that loads data, or once more on the way out
        if not self._active:  # training has ended, and Lightning has put this handler back
            signal.signal(number, signal.SIG_DFL)
            os.kill(owner, number)
        elif number not in self._received:
            self._received.add(number)
            _pass_on(trainer, number)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.global_step == self._steps_seen:
            return  # inside a step: its gradients would be lost
        self._steps_seen = trainer.global_step
        self._stopping = trainer.strategy.reduce_boolean_decision(bool(self._received), all=False)
        if self._stopping:
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._stopping:  # a validation that was due at the same step has been done too
            self._save(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._stopping:  # what was due at the end of the epoch before has been done
            self._save(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if not self._stopping:
            return
        by_slurm = trainer.strategy.reduce_boolean_decision(REQUEUE_SIGNAL in self._received, all=False)
        which = self._path if "://" in str(self._path) else "last"  # which does not look behind URLs
        said = f"; saved {self._path}, --ckpt_path {which} goes on from it" if self._path else ", and nothing is saved"
        rank_zero_info(f"interrupted after {trainer.global_step} steps{said}")
        if by_slurm and self.requeue and self._path and trainer.is_global_zero:  # not to do the same steps for ever
            requeue_slurm_job()
        raise SystemExit(0)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if not isinstance(exception, SystemExit | KeyboardInterrupt):
            _end_children(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The run is through: its later checkpoints are enough."""
        path = _interrupted_path(trainer)
        if trainer.is_global_zero and path is not None and os.path.exists(path):
            saving = model_checkpoint(trainer)
            others = filter(os.path.exists, (saving.last_model_path, saving.best_model_path))
            if any(os.path.getmtime(other) > os.path.getmtime(path) for other in others):
                remove(Path(path))

    def _save(self, trainer: Trainer) -> None:
        self._path = _interrupted_path(trainer)
        if self._path is not None:
            trainer.save_checkpoint(self._path, weights_only=False)  # Lightning speaks of it where it is unset


def requeue_slurm_job() -> None:
    """Puts the SLURM job that this process belongs to back into the queue; without one, does nothing."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    if not re.fullmatch(r"[0-9_]+", job):
        rank_zero_warn(f"not requeued: {job!r} is no number of a SLURM job")
        return
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True)
    except OSError as error:
        rank_zero_warn(f"job {job} is not requeued: scontrol cannot be run ({error})")
        return
    if done.returncode:
        rank_zero_warn(f"job {job} is not requeued: scontrol says {done.stderr.strip()!r}")
    else:
        rank_zero_info(f"job {job} is requeued")


def _interrupted_path(trainer: Trainer) -> str | None:
    """The path of `interrupted.ckpt`, in the folder or behind the URL of the last ModelCheckpoint."""
    folder = checkpoint_folder(trainer)
    return None if folder is None else os.path.join(folder, INTERRUPTED_FILE)


def _children(trainer: Trainer) -> list[subprocess.Popen]:
    return getattr(trainer.strategy.launcher, "procs", [])


def _pass_on(trainer: Trainer, number: int) -> None:
    for process in _children(trainer):
        process.send_signal(number)  # does nothing to one that has ended


def _end_children(trainer: Trainer) -> None:
    end = time.monotonic() + LAST_WORDS_SECONDS
    children = list(_children(trainer))
    _children(trainer).clear()  # or Lightning's observer of them would end this process before it has said why
    while time.monotonic() < end and any(process.poll() is None for process in children):
        time.sleep(0.1)
    for process in children:
        process.kill()
        process.wait()
