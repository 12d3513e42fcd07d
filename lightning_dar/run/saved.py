"""The checkpoints that lie in a folder, and which of them was saved last."""

from dataclasses import dataclass
from pathlib import Path

from lightning_dar.checkpoint.averaged import WhichWeights
from lightning_dar.checkpoint.load import Checkpoint, open_checkpoint
from lightning_dar.checkpoint.sharded import META_FILE
from lightning_dar.errors import DataError


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
    return f"; the newest whole one there has {steps_of(checkpoint)} steps: --ckpt_path {checkpoint.path}"


def steps_of(checkpoint: Checkpoint) -> int:
    return checkpoint.content.get("global_step", 0)


def _most_steps(checkpoints: list[Checkpoint]) -> Checkpoint | None:
    return max(checkpoints, key=lambda saved: (steps_of(saved), saved_at(saved)), default=None)


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
