"""What Lightning's callbacks need of this model, and which of them cannot work with it."""

import warnings
from typing import Any

import lightning as L
from lightning.pytorch import callbacks as lightnings
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from lightning_dar.checkpoint.load import CURRENT_KEY, choose_weights, trained_weights
from lightning_dar.errors import UsageError

AVERAGING = (lightnings.WeightAveraging, lightnings.StochasticWeightAveraging)
REFUSED: dict[type[L.Callback], str] = {
    lightnings.GradientAccumulationScheduler: "it changes the size of a step on the way, by which the position in the "
    "data is kept; set trainer.accumulate_grad_batches",
    lightnings.BatchSizeFinder: "the batch size decides what a step is, and a run that goes on could not have another "
    "one; set data.batch_size (`plan` says what fits)",
    lightnings.LearningRateFinder: "the schedule would set its own rate again one step after the one that is found; "
    "set model.optimizer.lr",
    lightnings.BackboneFinetuning: "the model has no `backbone`; --model.freeze_base true trains the routing alone",
    lightnings.OnExceptionCheckpoint: "a later run would go on from its file without being asked to; ModelCheckpoint "
    "takes save_on_exception=true, and --ckpt_path last finds what it saves",
    lightnings.ModelPruning: "its masks are in no checkpoint, so a run that goes on would train what is pruned",
}


def check_callbacks(trainer: L.Trainer) -> None:
    """Raises UsageError for one that would spoil the run, or fail in the middle of it."""
    for callback in trainer.callbacks:
        name = type(callback).__name__
        if type(callback) is lightnings.BaseFinetuning:
            raise UsageError(f"trainer.callbacks: {name} is a base class: derive one that freezes")
        for refused, reason in REFUSED.items():
            if isinstance(callback, refused):
                raise UsageError(f"trainer.callbacks: {name} does not work here: {reason}")
        if isinstance(callback, AVERAGING) and isinstance(trainer.strategy, FSDPStrategy | ModelParallelStrategy):
            raise UsageError(
                f"trainer.callbacks: {name} does not work with a sharded model: it copies the whole of it; leave it "
                "out, or use --trainer.strategy ddp"
            )


def adopt_callbacks(trainer: L.Trainer) -> None:
    """Puts `ModelFirst` before them all. Raises UsageError as `check_callbacks` does."""
    check_callbacks(trainer)
    warnings.filterwarnings("ignore", "You're using the WeightAveraging callback")  # with a sharded model, it says
    if not _has(trainer, ModelFirst):
        trainer.callbacks.insert(0, ModelFirst())


class ModelFirst(L.Callback):
    """Has the model built before any other callback is set up, and keeps what averages weights exact over a resume.

    Lightning builds a model of `configure_model` after the callbacks' `setup`, where some of them copy it.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        call._call_configure_model(trainer)  # in the precision and on the device that Lightning builds it for

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Takes out what a callback has saved and cannot load.

        Raises:
            UsageError: without StochasticWeightAveraging, whose schedule has taken the place of the run's own.
        """
        saved = checkpoint["callbacks"]
        for callback in trainer.callbacks:
            if isinstance(callback, lightnings.SpikeDetection) and saved.pop(callback.state_key, None):  # Lightning 2.6
                rank_zero_info("SpikeDetection begins its window of losses anew")
        in_it = any(isinstance(state, dict) and state.get("scheduler_state") for state in saved.values())
        if in_it and not _has(trainer, lightnings.StochasticWeightAveraging):
            raise UsageError(
                "trainer.callbacks: the checkpoint is in the middle of StochasticWeightAveraging, whose schedule it "
                "has; add the callback, or start anew from the weights by --model.init_from"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Does what Lightning leaves out where a run goes on inside an epoch: `on_train_epoch_start`, in which
        StochasticWeightAveraging makes its schedule, and what a BaseFinetuning had unfrozen."""
        loop = trainer.fit_loop
        for callback in trainer.callbacks:
            if isinstance(callback, lightnings.StochasticWeightAveraging):
                if loop.restarted_mid_epoch or loop.restarted_on_epoch_end:
                    callback.on_train_epoch_start(trainer, pl_module)
            elif isinstance(callback, lightnings.BaseFinetuning) and trainer.ckpt_path is not None:
                for group in trainer.optimizers[0].param_groups:
                    for parameter in group["params"]:
                        parameter.requires_grad_(True)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The last save comes before the averaged weights take the place of those that training goes on from."""
        if _has(trainer, AVERAGING):
            for callback in trainer.checkpoint_callbacks:
                callback.on_train_end(trainer, pl_module)


def add_averaged_weights(trainer: L.Trainer, checkpoint: dict[str, Any]) -> None:
    """Adds averaged weights where weights alone are saved: Lightning does not ask the callback that averages them."""
    for callback in trainer.callbacks:
        if isinstance(callback, lightnings.WeightAveraging) and CURRENT_KEY not in checkpoint:
            callback.on_save_checkpoint(trainer, trainer.lightning_module, checkpoint)


def choose_loaded_weights(trainer: L.Trainer, checkpoint: dict[str, Any]) -> None:
    """Puts into `state_dict`, of two sets of weights, the averaged ones to validate, and to train those that the
    optimizer goes on with, unless a callback does so itself."""
    if trainer.state.fn != "fit":
        checkpoint["state_dict"], weights = choose_weights(checkpoint, None, trainer.ckpt_path)
        if weights is not None:
            rank_zero_info(f"'{trainer.ckpt_path}' holds averaged and current weights: taken are the {weights} ones")
    elif CURRENT_KEY in checkpoint and not _has(trainer, lightnings.WeightAveraging):
        checkpoint["state_dict"] = trained_weights(checkpoint)
        rank_zero_info("training goes on with the current weights; no callback averages them any more")


def schedule_added_groups(scheduler: LRScheduler) -> None:
    """Parameters that a callback has given to the optimizer on the way follow the schedule too, from the rate that they
    came with."""
    if isinstance(scheduler, LambdaLR):
        for group in scheduler.optimizer.param_groups[len(scheduler.base_lrs) :]:
            scheduler.base_lrs.append(group.setdefault("initial_lr", group["lr"]))
        scheduler.lr_lambdas += scheduler.lr_lambdas[:1] * (len(scheduler.base_lrs) - len(scheduler.lr_lambdas))


def _has(trainer: L.Trainer, kinds: type | tuple[type, ...]) -> bool:
    return any(isinstance(callback, kinds) for callback in trainer.callbacks)
