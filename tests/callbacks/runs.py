"""Real runs of a few steps on random ids, and what they have logged."""

from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny import scramble
from torch.utils.data import DataLoader

from lightning_dar.callbacks import BranchStrength, RoutingCollapse, RoutingSharpness, SourceRedundancy
from lightning_dar.residual import ResidualConfig
from lightning_dar.training import LanguageModel

VOCAB, BATCH, SEQ_LEN = 257, 4, 16
MEASURING = (RoutingSharpness, RoutingCollapse, BranchStrength, SourceRedundancy)


class RandomTokens(L.LightningDataModule):
    """Ten training batches and six validation batches of random ids."""

    tokenizer, vocab_size, bytes_per_token = None, VOCAB, 1.0

    def __init__(self):
        super().__init__()
        ids = torch.randint(VOCAB, (64, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
        self.batches = [{"input_ids": row[:, :-1], "targets": row[:, 1:]} for row in ids.split(BATCH)]

    def train_dataloader(self):
        """The ranks share the batches in turn."""
        return DataLoader(self.batches[:10][self.trainer.global_rank :: self.trainer.world_size], batch_size=None)

    def val_dataloader(self):
        return DataLoader(self.batches[10:], batch_size=None)


def language_model(name: str = "delta-sublayer", **options) -> LanguageModel:
    residual = ResidualConfig(name=name, options=options)
    return LanguageModel(residual=residual, hidden_size=16, num_layers=3, num_heads=2, intermediate_size=24)


def fit(folder: Path, *callbacks: L.Callback, model: LanguageModel | None = None, **settings) -> L.Trainer:
    settings = {"max_steps": 6, "val_check_interval": 3, "log_every_n_steps": 1, **settings}
    trainer = L.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=TensorBoardLogger(folder, name="run"),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **settings,
    )
    trainer.fit(model or language_model(), RandomTokens())
    return trainer


def measured_run(folder: Path, **settings) -> None:
    """Four steps from the same weights whatever the processes, everything measured at each second one."""
    L.seed_everything(1)
    callbacks = [kind(every_n_steps=2) for kind in MEASURING]
    settings = {"max_steps": 4, "limit_val_batches": 0, "enable_checkpointing": False, **settings}
    settings["use_distributed_sampler"] = False
    fit(folder, *callbacks, model=language_model(query_init="normal"), **settings)


def events(trainer: L.Trainer) -> EventAccumulator:
    return logged_in(trainer.log_dir)


def logged_in(folder: Path | str) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"images": 0, "tensors": 0}).Reload()


class Scramble(L.Callback):
    """Weights of order one before the first step: routing far from uniform."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: LanguageModel) -> None:
        scramble(pl_module.model)
