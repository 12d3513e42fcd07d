"""A callback of a user's own that unfreezes part of the model on the way."""

from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import BaseFinetuning
from torch.optim import Optimizer


class Unfreezing(BaseFinetuning):
    """Trains the embedding from the second epoch on."""

    def freeze_before_training(self, pl_module: LightningModule) -> None:
        self.freeze(pl_module.model.embed)

    def finetune_function(self, pl_module: LightningModule, epoch: int, optimizer: Optimizer) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.model.embed, optimizer, lr=0.01)
