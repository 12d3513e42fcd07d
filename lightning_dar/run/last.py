"""Which checkpoint is the last: of a folder, of the run that a config names, and whether that run has ended by itself.

`--ckpt_path last` goes on from it. A run that has come to its end writes `finished.json` beside its checkpoints; one
that a signal, Ctrl-C or an error has ended writes nothing, and goes on.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from lightning_dar.checkpoint.load import Checkpoint, WhichWeights, open_checkpoint
from lightning_dar.checkpoint.tensors import META_FILE
from lightning_dar.errors import DataError, UsageError
from lightning_dar.run.loggers import class_named, kind_of, local, loggers_of
from lightning_dar.text.progress import epochs_done

SAVING = "ModelCheckpoint"
FINISHED_FILE = "finished.json"
DEFAULT_EPOCHS = 1000  # Lightning's, where no limit is given
LIMITS = ("max_steps", "max_epochs", "max_time", "min_steps", "min_epochs", "limit_train_batches", "callbacks")


@dataclass(frozen=True)
class Damaged:
    path: Path
    reason: str


def newest_in(folder: Path) -> Checkpoint | None:
    """The checkpoint with the most steps that training can go on from; None where there is none.

    Hidden names and links do not count: a save has its name once it is whole.

    Raises:
        DataError: one that was saved later than that is damaged, or part of it missing; names both.
    """
    whole, damaged = _split(folder)
    newest = _most_steps(whole)
    saved = saved_at(newest) if newest else 0.0
    for bad in damaged:
        if saved_at(bad) > saved:
            raise DataError(bad.reason + _offer(newest))
    return newest


def open_or_offer(path: str | Path, weights: WhichWeights | None = None) -> Checkpoint:
    """`open_checkpoint`; what it raises for a damaged one also names the newest whole one beside it."""
    try:
        return open_checkpoint(path, weights)
    except DataError as error:
        resolved = Path(path).resolve()
        whole = [checkpoint for checkpoint in _split(resolved.parent)[0] if checkpoint.path != resolved]
        raise DataError(f"{error}{_offer(_most_steps(whole))}") from error


def _offer(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        return ""
    return f"; the newest whole one there has {checkpoint.steps} steps: --ckpt_path {checkpoint.path}"


def _most_steps(checkpoints: list[Checkpoint]) -> Checkpoint | None:
    return max(checkpoints, key=lambda saved: (saved.steps, saved_at(saved)), default=None)


def _split(folder: Path) -> tuple[list[Checkpoint], list[Damaged]]:
    whole, damaged = [], []
    for path in sorted(folder.glob("[!.]*.ckpt")):
        if path.is_symlink():
            continue
        try:
            checkpoint = open_checkpoint(path)
        except DataError as error:
            damaged.append(Damaged(path, str(error)))
            continue
        if checkpoint.resumable:
            whole.append(checkpoint)
    return whole, damaged


def saved_at(checkpoint: Checkpoint | Damaged) -> float:
    """Seconds since the epoch."""
    path = checkpoint.path
    file = path / META_FILE if (path / META_FILE).exists() else path
    return file.stat().st_mtime


def last_checkpoint(trainer: Namespace) -> Checkpoint | None:
    """The newest checkpoint that training can go on from, None where there is none.

    It is looked for in the folders that ModelCheckpoints are told and, where one is told none, in the newest version
    folder of the first logger that has one.

    Raises:
        UsageError: a logger of whose folders nothing is known, or a URL.
        DataError: as `newest_in` does.
    """
    saving = [callback for callback in trainer.callbacks or [] if callback.class_path.endswith(SAVING)]
    told = [folder for callback in saving if (folder := _told_folder(callback))]
    found = [newest_in(folder) for folder in dict.fromkeys(told)]
    if len(told) < max(1, len(saving)):
        folders = (run / "checkpoints" for run in _run_folders(trainer, told))
        found.append(next((newest for folder in folders if (newest := newest_in(folder))), None))
    return max(filter(None, found), key=saved_at, default=None)


def _told_folder(saving: Namespace) -> Path | None:
    folder = saving.get("init_args", Namespace()).get("dirpath")
    return local(folder) if folder else None


def _run_folders(trainer: Namespace, told: list[Path]) -> list[Path]:
    """The folders of all runs, the newest first. Raises UsageError where they are not known, and none are `told`."""
    root, loggers = trainer.default_root_dir or ".", loggers_of(trainer)
    if not loggers:
        return [local(root)]
    entry = loggers[0].as_dict()
    settings = {**entry.get("init_args", {}), **(entry.get("dict_kwargs") or {})}
    folders = kind_of(class_named(loggers[0].class_path)).run_folders(settings, root)
    if folders is None and told:
        return []
    if folders is None:
        name = loggers[0].class_path.rpartition(".")[2]
        raise UsageError(
            f"--ckpt_path last: {name} does not tell where its runs are; give the checkpoint's path, or a folder "
            f"(dirpath) for {SAVING}"
        )
    return folders


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of a run.

    Attributes:
        steps: optimizer steps done.
        saved: those in the newest checkpoint there. Where that one is gone, what is left goes on.
        reason: what ended it, in words: "all 4 steps", "EarlyStopping".
        asked: the trainer's settings that decide when a run ends. Others make it go on.
    """

    steps: int
    saved: int
    reason: str
    asked: dict[str, Any]


def asked_of(trainer: Namespace) -> dict[str, Any]:
    """`Finished.asked` for the trainer's section of a config, in types that JSON has."""
    kept = {key: trainer.get(key) for key in LIMITS}
    return json.loads(
        json.dumps(kept, default=lambda value: vars(value) if isinstance(value, Namespace) else str(value))
    )


@dataclass(frozen=True)
class Reached:
    """A limit that a checkpoint has reached, by its own counts.

    Attributes:
        unit: `steps` or `epochs`; the limit is then trainer.max_steps or trainer.max_epochs.
    """

    unit: str
    wanted: int
    done: int


def limit_reached(checkpoint: Checkpoint, trainer: Namespace) -> Reached | None:
    """The first limit in the config's `trainer` that leaves nothing to do, None where there is none."""
    epochs = trainer.max_epochs
    if epochs is None and trainer.max_steps == -1 and trainer.max_time is None:
        epochs = DEFAULT_EPOCHS
    counts = (
        Reached("steps", trainer.max_steps, checkpoint.steps),
        Reached("epochs", -1 if epochs is None else epochs, epochs_done(checkpoint.content["loops"]["fit_loop"])),
    )
    return next((count for count in counts if 0 < count.wanted <= count.done), None)


def ended_by_itself(checkpoint: Checkpoint, trainer: Namespace) -> Finished | None:
    """The end that the checkpoint's run has come to, where it is the last that was saved (its last steps may not have
    been) and the config's `trainer` would end it again."""
    end = read_finished(checkpoint.path.parent)
    return end if end is not None and end.asked == asked_of(trainer) and checkpoint.steps == end.saved else None


@rank_zero_only
def write_finished(trainer: Trainer, asked: dict[str, Any]) -> None:
    """Notes that `fit` has come to its end, beside the checkpoints that it has saved to local folders."""
    if not trainer.state.finished:
        return
    for folder in _folders(trainer):
        try:
            newest = newest_in(folder)
            if newest is not None:
                end = Finished(steps=trainer.global_step, saved=newest.steps, reason=_reason(trainer), asked=asked)
                (folder / FINISHED_FILE).write_text(json.dumps(asdict(end)), encoding="utf-8")
        except (OSError, DataError) as error:
            rank_zero_warn(f"{folder}: that the run has ended cannot be noted ({error}); --ckpt_path last would go on")


def read_finished(folder: Path) -> Finished | None:
    """None where the run in this folder of checkpoints has not ended by itself."""
    try:
        return Finished(**json.loads((folder / FINISHED_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _folders(trainer: Trainer) -> list[Path]:
    """The folders of all ModelCheckpoints: `last` looks into all of them."""
    saving = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    paths = dict.fromkeys(str(callback.dirpath) for callback in saving if callback.dirpath)
    return [Path(path) for path in paths if "://" not in path and Path(path).is_dir()]


def _reason(trainer: Trainer) -> str:
    if 0 < trainer.max_steps <= trainer.global_step:
        return f"all {trainer.max_steps} steps"
    if trainer.max_epochs is not None and 0 <= trainer.max_epochs <= trainer.current_epoch:
        return f"all {trainer.max_epochs} epochs"
    stopping = trainer.early_stopping_callbacks
    if any(callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED for callback in stopping):
        return "EarlyStopping"
    timers = [callback for callback in trainer.callbacks if isinstance(callback, Timer)]
    if any((timer.time_remaining() or 0) < 0 for timer in timers):
        return "its time is used up"
    return f"{trainer.global_step} steps, when a callback stopped it"
