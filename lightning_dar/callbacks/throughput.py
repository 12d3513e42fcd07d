"""Tokens per second, what share of the GPU's peak that is, how long data were waited for, and peak memory."""

import sys
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_dar.model.flops import model_flops
from lightning_dar.plan.setting import device_of

GIB = 2**30


class Throughput(Callback):
    """Logs, each over the trainer's `log_every_n_steps`; validation and the first batch do not count:

    `throughput/tokens_per_second`: all ranks together.
    `throughput/mfu`: model FLOPs utilisation, 0 to 1: the FLOPs of `model_flops` for those tokens, as a share of the
        GPUs' peak. Only on GPUs whose peak is known by name.
    `throughput/data_wait`: share of the training time that went into waiting for data, 0 to 1.
    `throughput/peak_memory_gib`: of this process: what tensors took on the GPU at most since the last time; on the
        CPU, the largest resident size so far, where the system tells it.
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
            rate = self._tokens / self._elapsed
            pl_module.log("throughput/tokens_per_second", rate, prog_bar=True)
            pl_module.log("throughput/data_wait", self._waited / self._elapsed)
            peak = peak_flops(pl_module.device, trainer.precision)
            if peak is not None:
                needed = model_flops(pl_module.model.config, batch["input_ids"].shape[-1])
                pl_module.log("throughput/mfu", rate * needed / (peak * trainer.world_size))
            memory = peak_memory(pl_module.device)
            if memory is not None:
                pl_module.log("throughput/peak_memory_gib", memory / GIB)
            self._reset()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._logged_step = trainer.global_step

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._ended = None

    def _reset(self) -> None:
        self._tokens, self._elapsed, self._waited = 0, 0.0, 0.0


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s of a device in a precision of the trainer; None where it is not known."""
    if device.type != "cuda":
        return None
    known = device_of(torch.cuda.get_device_name(device))
    return None if known is None else known.peak(precision)


def peak_memory(device: torch.device) -> int | None:
    """Bytes that tensors took on a GPU since this was last asked; on the CPU, the largest resident size of the process
    so far. None where it is not known."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    if device.type != "cpu" or sys.platform not in ("linux", "darwin"):
        return None
    import resource  # not on Windows

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest
