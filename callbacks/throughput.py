"""Tokens per second, and how much of the time goes into waiting for data."""

from time import perf_counter
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class Throughput(Callback):
    """Logs `throughput/tokens_per_second` (all ranks together) and `throughput/data_wait` (share of the training
    time, 0 to 1), each over the trainer's `log_every_n_steps`; validation and the first batch do not count.
    """

    def __init__(self) -> None:
        self._ended: float | None = None
        self._logged_step = 0
        self._reset()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._ended is not None:
            self._waited += perf_counter() - self._ended

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = perf_counter()
        if self._ended is not None:
            self._elapsed += now - self._ended
            self._tokens += batch["input_ids"].numel() * trainer.world_size
        self._ended = now
        if trainer.global_step - self._logged_step >= trainer.log_every_n_steps and self._elapsed > 0:
            self._logged_step = trainer.global_step
            pl_module.log("throughput/tokens_per_second", self._tokens / self._elapsed, prog_bar=True)
            pl_module.log("throughput/data_wait", self._waited / self._elapsed)
            self._reset()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._logged_step = trainer.global_step

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = None

    def _reset(self) -> None:
        self._tokens, self._elapsed, self._waited = 0, 0.0, 0.0
