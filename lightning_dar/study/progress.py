"""Tells how far a cell's run is to whoever waits for it."""

import json
from pathlib import Path
from time import monotonic
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

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
