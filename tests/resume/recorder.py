"""Callbacks that write down what a run saw, and what its model says at the end."""

from pathlib import Path

import torch
from lightning.pytorch import Callback

IDS = torch.arange(3 * 40).view(3, 40) % 251
LOGITS = "logits.pt"


class Seen(Callback):
    """`seen/RANK.txt`, a line a window: the optimizer step that trained on it, and the window's ids."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        Path("seen").mkdir(exist_ok=True)
        lines = (f"{trainer.global_step} {' '.join(map(str, ids))}\n" for ids in batch["input_ids"].tolist())
        with Path("seen", f"{trainer.global_rank}.txt").open("a") as file:
            file.writelines(lines)


class Logits(Callback):
    """`logits.pt`: the trained model's logits of `IDS`, by the weights that are in memory."""

    def on_train_end(self, trainer, pl_module):
        pl_module.model.eval()
        with torch.no_grad():  # in every process: each gathers the shards of all
            logits = pl_module.model(IDS)
        if trainer.is_global_zero:
            torch.save(logits, LOGITS)
