"""Fits of one number that write down which windows they were given."""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_dar.text import TextData

SEQ_LEN, BATCH_SIZE = 255, 16


class Recorder(L.LightningModule):
    """Trains one number and records the windows that it was given, and before which steps."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []
        self.steps = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch["input_ids"].clone())
        self.steps.append(self.trainer.global_step)
        return self.weight * batch["targets"].float().mean()

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def text_data(prepared, **options):
    return TextData(**{"source": str(prepared), "seq_len": SEQ_LEN, "batch_size": BATCH_SIZE} | options)


def fit(data, tmp_path, ckpt_path=None, every_n_steps=None, callbacks=(), **limits):
    """Fits and returns (windows seen, trainer); checkpoints go to tmp_path."""
    saves = [ModelCheckpoint(tmp_path, filename="epoch-{epoch}-{step}", save_top_k=-1, save_on_train_epoch_end=True)]
    if every_n_steps:
        saves.append(ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=every_n_steps))
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, *saves],
        **limits,
    )
    model = Recorder()
    trainer.fit(model, datamodule=data, ckpt_path=ckpt_path)
    return model.seen, trainer


def same_windows(one, two):
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
