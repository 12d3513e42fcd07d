"""A last validation when training ends by `max_steps`."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class FinalValidation(Callback):
    """Makes the last step validate whatever `val_check_interval` says, so that the final checkpoint, the summary
    and the logs speak of the same weights. (Lightning ends a run at `max_steps` without one.)"""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if 0 < trainer.max_steps <= trainer.global_step:
            trainer.should_stop = True  # a stopping trainer validates first
