"""Real runs of `cli.py`, each process forked from one that has imported everything, and ways to end them early."""

import contextlib
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from command_line import SIZES
from free_port import free_port
from states import state_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_dar.checkpoint.load import open_checkpoint

HERE = Path(__file__).parent
CHECKPOINTS = Path("runs/test/version_0/checkpoints")
SETTINGS = {
    "trainer.accelerator": "cpu",
    "trainer.max_steps": 16,
    "trainer.val_check_interval": 4,
    "trainer.check_val_every_n_epoch": "null",
    "trainer.num_sanity_val_steps": -1,
    "trainer.enable_progress_bar": "false",
    "trainer.enable_model_summary": "false",
    "trainer.log_every_n_steps": 1,
    "trainer.logger.class_path": "lightning.pytorch.loggers.TensorBoardLogger",
    "trainer.logger.init_args.save_dir": "runs",
    "trainer.logger.init_args.name": "test",
    "data.source": "shards",
    "data.seq_len": 127,
    "data.batch_size": 32,  # 13 batches a pass: it ends within a run
    "data.val_windows": 8,
    "model.optimizer.warmup_steps": 2,
    "model.residual.name": "noisy",
    "plugins": "noisy",
}
HOOKS = ("on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end", "on_validation_batch_end")

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["lightning_dar.fit.lightning_cli", "callbacks", "tensorboard", "altair"])

SHARDED = {
    "trainer__strategy__class_path": "lightning_dar.training.FSDP2",
    "trainer__strategy__init_args__save_distributed_checkpoint": "true",
}

Before = Callable[[], None]


def nothing() -> None: ...


@dataclass
class Result:
    statuses: list[int]
    said: str
    seconds: float

    def check(self) -> "Result":
        assert not any(self.statuses), self.said
        return self


class Runs:
    """Runs in one folder, which is made, on shards prepared before."""

    def __init__(self, folder: Path, shards: Path | None = None):
        self.folder, self.shards, self._number = folder, shards, 0
        folder.mkdir(exist_ok=True)
        if shards is not None:
            (folder / "shards").symlink_to(shards)

    def fit(self, *args: Any, processes: int = 1, before: Before | dict[int, Before] = nothing, **settings: Any):
        """Fits in so many processes; `before` is called in them (or in those of some ranks) before the run starts."""
        return self.run("fit", *fit_settings(processes, settings), *args, processes=processes, before=before)

    def fit_launched(self, before: Before, **settings: Any) -> Result:
        """Fits in a process that launches a second one, as Lightning does; `before` is called in the first."""
        return self.run("fit", *fit_settings(2, settings), before=before)

    def run(self, *args: Any, processes: int = 1, before: Before | dict[int, Before] = nothing) -> Result:
        return self.wait(*self.start(*args, processes=processes, before=before))

    def start(self, *args: Any, processes: int = 1, before: Before | dict[int, Before] = nothing) -> tuple[list, Path]:
        self._number += 1
        log = self.folder / f"said_{self._number}.txt"
        port = free_port()
        started = []
        for rank in range(processes):
            environment = _torchrun(rank, processes, port) if processes > 1 else {}
            hook = before.get(rank, nothing) if isinstance(before, dict) else before
            work = (self.folder, [str(arg) for arg in args], environment, log, hook)
            started.append(_server.Process(target=_run, args=work))
            started[-1].start()
        return started, log

    def wait(self, started: list, log: Path, timeout: float = 120.0) -> Result:
        start = time.monotonic()
        for process in started:
            process.join(max(0.0, start + timeout - time.monotonic()))
        alive = [process for process in started if process.is_alive()]
        for process in alive:
            process.kill()
        said = log.read_text() if log.exists() else ""
        assert not alive, f"still running after {timeout} s:\n{said}"
        return Result([process.exitcode for process in started], said, time.monotonic() - start)

    def still_running(self) -> list[str]:
        """Processes that work in the folder."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if os.readlink(process / "cwd") == str(self.folder):
                    found.append(process.name)
        return found

    def newest(self) -> Path:
        """The folder of the newest version."""
        return max(self.folder.glob("runs/test/version_*"))

    def weights(self) -> dict[str, torch.Tensor]:
        """And the optimizer's averages, of the run's last checkpoint."""
        last = self.newest() / "checkpoints/last.ckpt"
        if last.is_dir():
            return {**state_of(last), "step": torch.tensor(open_checkpoint(last).content["global_step"])}
        content = torch.load(last, weights_only=True)
        moments = content["optimizer_states"][0]["state"]
        flat = {f"{key} {name}": value for key, state in moments.items() for name, value in state.items()}
        return {**content["state_dict"], **flat, "step": torch.tensor(content["global_step"])}

    def logged(self) -> dict[str, list[tuple[int, float]]]:
        """All scalars but those of the time it took."""
        events = EventAccumulator(str(self.newest())).Reload()
        tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("throughput")]
        return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def fit_settings(processes: int = 1, settings: dict[str, Any] | None = None) -> list[str]:
    spread = {} if processes == 1 else {"trainer.devices": processes, "trainer.strategy": "ddp", "data.batch_size": 16}
    chosen = {**SETTINGS, **spread, **{key.replace("__", "."): value for key, value in (settings or {}).items()}}
    return [*SIZES, f"--config={HERE / 'callbacks.yaml'}", *(f"--{key}={value}" for key, value in chosen.items())]


def _run(folder: Path, args: list[str], environment: dict[str, str], log: Path, before: Before) -> None:
    multiprocessing.set_start_method("fork", force=True)  # as in a process started anew
    os.chdir(folder)
    os.environ |= environment
    sys.path[:0] = [str(HERE.parents[1]), str(HERE)]
    os.environ["PYTHONPATH"] = f"{HERE.parents[1]}:{HERE}"
    sys.argv = [str(HERE.parents[1] / "cli.py"), *args]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    torch.set_num_threads(1)
    import cli

    before()
    cli.main(args)


def _torchrun(rank: int, world: int, port: int) -> dict[str, str]:
    values = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    return {key: str(value) for key, value in {**values, **where}.items()}


def at_hook(name: str, count: int, act: Callable[[], None]) -> None:
    """Has `act` done when the trainer calls that hook of the callbacks for the count-th time."""
    from lightning.pytorch.trainer import call

    original, calls = call._call_callback_hooks, 0

    def counting(trainer: Any, hook: str, *args: Any, **kwargs: Any) -> None:
        nonlocal calls
        original(trainer, hook, *args, **kwargs)
        calls += hook == name and (not trainer.sanity_checking or "sanity" in name)
        if hook == name and calls == count:
            act()

    call._call_callback_hooks = counting


def at_save(count: int, act: Callable[[], None]) -> None:
    """Has `act` done when the count-th checkpoint is about to be written."""
    from lightning.pytorch import Trainer

    original, calls = Trainer.save_checkpoint, 0

    def counting(trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            act()
        original(trainer, *args, **kwargs)

    Trainer.save_checkpoint = counting


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def limit_files(size: int, deadly: bool) -> None:
    """No file may grow beyond `size` bytes: the system ends the process that tries, or refuses it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL if deadly else signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def killed_at_a_random_moment(seed: int, batches: int) -> Before:
    """SIGKILL in some hook of some batch, or while some checkpoint is written, after some of its bytes."""
    draw = random.Random(seed)
    hook = draw.choice((*HOOKS, "save"))
    if hook == "save":
        size = draw.randint(20_000, 200_000)  # a shard of Muon's has 210 kB
        return partial(at_save, draw.randint(1, 4), partial(limit_files, size, True))
    most = {"on_train_batch_start": batches, "on_train_batch_end": batches, "on_validation_batch_end": 4}.get(hook, 16)
    return partial(at_hook, hook, draw.randint(1, most - 1), partial(send, signal.SIGKILL))
