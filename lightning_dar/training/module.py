"""The LightningModule: a transformer, one loss, an optimizer with its schedule."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import FSDPStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from lightning_dar.checkpoint.carried import FILES_KEY, make_tokenizer, packed, tokenizer_of, unpacked
from lightning_dar.checkpoint.description import DESCRIPTION_KEY, describe
from lightning_dar.checkpoint.load import (
    Checkpoint,
    WhichWeights,
    build_on_meta,
    load_weights,
    open_checkpoint,
    which_weights,
)
from lightning_dar.errors import DataError, UsageError
from lightning_dar.model import MLPConfig, RopeScaling, Transformer, build_transformer, resolve_config
from lightning_dar.residual import ResidualConfig
from lightning_dar.run.state import add_state, from_all_ranks, random_state, set_random_state, state_of
from lightning_dar.text.progress import batches_since_step
from lightning_dar.text.tokenizer import Tokenizer
from lightning_dar.training.callbacks import (
    add_averaged_weights,
    adopt_callbacks,
    choose_loaded_weights,
    schedule_added_groups,
)
from lightning_dar.training.finite import FiniteSteps, OnFault
from lightning_dar.training.loss import IGNORE_INDEX, chunked_cross_entropy, validation_metrics
from lightning_dar.training.optimizer import OptimizerConfig, build_optimizer, schedule_factor
from lightning_dar.training.parallelize import (
    ActivationCheckpointing,
    build_deferred,
    checkpointed_layers,
    initialise,
    parallelize,
    read_from,
)
from lightning_dar.training.strategies import FSDP, FSDP_PREFIX

Batch = dict[str, Tensor]


class LanguageModel(L.LightningModule):
    """Next-token training of a routed transformer on batches of `TextData`."""

    def __init__(
        self,
        residual: ResidualConfig = ResidualConfig(),
        optimizer: OptimizerConfig = OptimizerConfig(),
        init_from: str | None = None,
        init_weights: WhichWeights | None = None,
        freeze_base: bool = False,
        activation_checkpointing: ActivationCheckpointing = "none",
        compile: bool = False,
        non_finite: OnFault = "stop",
        max_skipped_steps: int = 10,
        **architecture: Any,
    ):
        """
        Args:
            residual: the residual strategy, by name, with its options.
            optimizer: AdamW or Muon, and the schedule of the rate.
            init_from: checkpoint whose weights training starts from: a .ckpt file, or a sharded, converted or
                Hugging Face folder. Architecture and strategy are then the checkpoint's.
            init_weights: which ones, of a checkpoint whose run averaged its weights: `averaged`, the default, or
                `current`.
            freeze_base: train only the strategy's own parameters.
            activation_checkpointing: what the backward computes again instead of holding it: `none`, `sublayer` (the
                inside of every sublayer), `full` (whole layers, depth reads included), or the fraction of the layers,
                such as 0.5, that is treated as in `full`.
            compile: compile every sublayer with torch.compile.
            non_finite: what a step does whose loss or gradient is not finite on some rank: `stop` ends the run, with
                the batch and the last checkpoint named; `skip` leaves weights and optimizer as they were and goes on.
            max_skipped_steps: steps that a run may leave out by `skip`; one more ends it.
            architecture: a preset and explicit sizes, see `resolve_config`.

        Raises:
            UsageError: sizes, strategy or options that cannot work.
            DataError: a checkpoint to start from that cannot be opened.
        """
        super().__init__()
        self.model: Transformer | None = None
        self.residual = ResidualConfig(**residual) if isinstance(residual, dict) else residual
        self.optimizer = OptimizerConfig(**optimizer) if isinstance(optimizer, dict) else optimizer
        self.init_from, self.init_weights, self.freeze_base = init_from, init_weights, freeze_base
        self.activation_checkpointing, self.compile_sublayers = activation_checkpointing, compile
        self.hf_config: dict[str, Any] | None = None
        self.known_tokenizer: Tokenizer | None = None  # of the weights that training starts from, or goes on with
        self.files: dict[str, bytes] = {}  # what else came with those weights
        self.finite_steps = FiniteSteps(non_finite, max_skipped_steps)
        self._random_states: list[dict[str, Any]] = []  # by rank, of the run that is resumed
        self._auxiliary: dict[int, Tensor] = {}  # by site, of the batch at hand
        self._random_at_step: dict[str, Any] = {}  # before the first batch of a step of several
        if init_from is None:
            self.config = resolve_config(**architecture)
        else:
            self._take_over(open_checkpoint(init_from, init_weights), architecture)
        # Shapes only: costs nothing, and finds what cannot work before any data is read.
        model = build_on_meta(replace(self.config, vocab_size=self.config.vocab_size or 1), self.residual)
        checkpointed_layers(activation_checkpointing, self.config.num_layers)
        if freeze_base and not any(True for _ in model.residual.parameters()):
            raise UsageError(f"model.freeze_base: strategy '{self.residual.name}' has no parameters to train")
        self.save_hyperparameters(
            {
                **asdict(self.config),
                "residual": asdict(self.residual),
                "optimizer": asdict(self.optimizer),
                "freeze_base": freeze_base,
                "activation_checkpointing": activation_checkpointing,
                "compile": compile,
                "non_finite": non_finite,
                "max_skipped_steps": max_skipped_steps,
            }
        )

    def _take_over(self, checkpoint: Checkpoint, architecture: dict[str, Any]) -> None:
        """Architecture, strategy and tokenizer of the checkpoint. Raises UsageError where others are asked for."""
        has = "the checkpoint to start from has"
        own = asdict(checkpoint.config)
        if checkpoint.weights is not None and self.init_weights is None:
            rank_zero_info(which_weights(checkpoint.path, checkpoint.weights, "model.init_weights="))
        backend = architecture.pop("attention_backend", None)
        for name, value in architecture.items():
            value = asdict(value) if isinstance(value, (RopeScaling, MLPConfig)) else value
            if value is not None and value != own.get(name):
                raise UsageError(f"model.{name}={value}: {has} {own.get(name)}; leave it unset")
        wired, asked = checkpoint.residual, self.residual
        same = asked.name == wired.name and asked.options.items() <= wired.options.items()
        if not same and (asked.name, asked.options) != (ResidualConfig().name, {}):
            raise UsageError(
                f"model.residual.name={asked.name} with {asked.options}: {has} {wired.name} with {wired.options}; "
                "leave it unset, or convert the checkpoint first"
            )
        self.residual = replace(asked, name=wired.name, options=wired.options)
        self.config = replace(checkpoint.config, attention_backend=backend or checkpoint.config.attention_backend)
        self.hf_config = checkpoint.description.get("hf_config")
        if checkpoint.description["tokenizer"] is not None:
            self.known_tokenizer = tokenizer_of(checkpoint)
        self.files = checkpoint.files

    def configure_callbacks(self) -> list[L.Callback]:
        """Adds none; has the model built before those of the trainer are set up.

        Raises:
            UsageError: one that cannot work, or a strategy that cannot shard the model.
        """
        if isinstance(self.trainer.strategy, FSDPStrategy) and not isinstance(self.trainer.strategy, FSDP):
            raise UsageError(
                "trainer.strategy=fsdp: use the class_path lightning_dar.training.FSDP2 or lightning_dar.training.FSDP"
            )
        if isinstance(self.trainer.strategy, FSDP) and self.optimizer.name == "muon":
            raise UsageError(
                "model.optimizer.name=muon: needs whole matrices, which FSDP cuts anywhere; use the class_path "
                "lightning_dar.training.FSDP2 (configs/strategy/fsdp2.yaml), ddp, or adamw"
            )
        adopt_callbacks(self.trainer)
        return []

    def setup(self, stage: str) -> None:
        """Takes from the data what the model and the metrics need to know of it.

        Raises:
            UsageError: a vocabulary smaller than the data's.
        """
        self._take_vocabulary()
        self.val_metrics = validation_metrics(getattr(self.trainer.datamodule, "bytes_per_token", None))

    def _take_vocabulary(self) -> None:
        data = self.trainer.datamodule
        data_vocabulary, self.tokenizer = getattr(data, "vocab_size", None), getattr(data, "tokenizer", None)
        if self.config.vocab_size is None:
            self.config = replace(self.config, vocab_size=data_vocabulary)
        elif data_vocabulary is not None and data_vocabulary > self.config.vocab_size:
            raise UsageError(
                f"model.vocab_size={self.config.vocab_size} is smaller than the {data_vocabulary} ids of the data's "
                "tokenizer: raise it, or leave it unset"
            )
        elif hasattr(data, "id_limit"):  # checked against each batch: shards may come without their tokenizer
            data.id_limit = self.config.vocab_size
        self._check_tokenizer()

    def configure_model(self) -> None:
        """Builds the transformer, wrapped, and sharded where the strategy gives a device mesh: part by part then."""
        if self.model is not None:
            return
        self._take_vocabulary()
        start = None if self.init_from is None else open_checkpoint(self.init_from, self.init_weights)
        fill = None
        if self.device_mesh is None:
            self.model = build_transformer(self.config, self.residual)
            if start is not None:
                load_weights(self.model, start)
        else:
            self.model = build_deferred(self.config, self.residual)
            fill = initialise(self.model) if start is None else read_from(self.model, start)
        if self.freeze_base:
            self.model.requires_grad_(False)
            self.model.residual.requires_grad_(True)
        parallelize(
            self.model,
            self.activation_checkpointing,
            compile_backend="inductor" if self.compile_sublayers else None,
            mesh=self.device_mesh,
            compute_dtype=torch.bfloat16 if self.trainer.precision == "bf16-mixed" else None,
            fill=fill,
        )

    def forward(self, input_ids: Tensor) -> Tensor:
        """Token ids [B, T] -> logits [B, T, V]."""
        return self.model(input_ids)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        total, tokens = self._loss(batch)
        auxiliary, self._auxiliary = self._auxiliary, {}
        loss = total / self._mean_over_ranks(tokens)
        self.log("train/loss", loss.detach(), prog_bar=True, sync_dist=True)
        if auxiliary:
            extra = torch.stack(list(auxiliary.values())).sum()
            self.log("train/auxiliary_loss", extra.detach(), sync_dist=True)
            loss = loss + extra
        self.finite_steps.add(loss, batch["input_ids"])
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Raises TrainingError as `FiniteSteps` does."""
        if self.finite_steps.are_to_skip(self.trainer, optimizer):
            optimizer.zero_grad(set_to_none=True)  # without gradients it leaves everything as it is

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.val_metrics.update(*self._loss(batch))
        self.log_dict(self.val_metrics)

    def configure_optimizers(self) -> dict[str, Any]:
        total_steps = self.trainer.estimated_stepping_batches
        if total_steps == float("inf"):
            raise UsageError("trainer.max_steps: the schedule needs an end; set it, or trainer.max_epochs")
        fused = not self.trainer.precision.endswith("-mixed")
        named = ((name.replace(FSDP_PREFIX, ""), parameter) for name, parameter in self.model.named_parameters())
        optimizer = build_optimizer(named, self.optimizer, fused, self.model.decays)
        factor = schedule_factor(self.optimizer, int(total_steps))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"},
        }

    def lr_scheduler_step(self, scheduler: LRScheduler, metric: Any | None) -> None:
        schedule_added_groups(scheduler)
        super().lr_scheduler_step(scheduler, metric)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Lightning's, but for the norm over FSDP's flat shards, which it does not know."""
        if isinstance(self.trainer.strategy, FSDP) and gradient_clip_val and gradient_clip_algorithm != "value":
            self.model.clip_grad_norm_(gradient_clip_val)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The checkpoint describes itself: `load_model` and the command line need nothing else."""
        add_averaged_weights(self.trainer, checkpoint)
        tokenizer = self.tokenizer.to_json() if self.tokenizer else None
        checkpoint[DESCRIPTION_KEY] = describe(
            self.config, self.model.residual, self.residual, tokenizer, self.hf_config
        )
        checkpoint[FILES_KEY] = packed(self._files())
        checkpoint["hyper_parameters"]["vocab_size"] = self.config.vocab_size
        drawn = self._random_at_step if batches_since_step(self.trainer) else random_state(self.device)
        random = from_all_ranks(self.trainer, drawn)
        add_state(checkpoint, random=random, skipped_steps=self.finite_steps.skipped)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raises DataError where the data's ids mean other tokens than the checkpoint's."""
        description = checkpoint.get(DESCRIPTION_KEY, {})
        self.hf_config, self.files = description.get("hf_config"), unpacked(checkpoint.get(FILES_KEY, {}))
        if description.get("tokenizer") is not None:
            self.known_tokenizer = make_tokenizer(description["tokenizer"], self.files, self.hf_config)
        self._check_tokenizer()
        choose_loaded_weights(self.trainer, checkpoint)
        state = state_of(checkpoint)
        self._random_states, self.finite_steps.skipped = state.random, state.skipped_steps

    def on_train_start(self) -> None:
        """After all that draws random numbers on the way here."""
        if len(self._random_states) == self.trainer.world_size:  # others have no state to take up
            set_random_state(self._random_states[self.global_rank], self.device)
        self._random_states = []

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        several = self.trainer.accumulate_grad_batches
        if several > 1 and batch_idx % several == 0:
            self._random_at_step = random_state(self.device)

    def _check_tokenizer(self) -> None:
        """Raises DataError where the data's ids mean others than those of the weights, or end documents otherwise."""
        tokenizer, known = getattr(self, "tokenizer", None), self.known_tokenizer
        if tokenizer is None or (known is None and not self.files and self.hf_config is None):
            return
        if known is None:
            known = make_tokenizer(tokenizer.to_json(), self._files(), self.hf_config)
        if tokenizer.hash != known.hash:
            raise DataError("data.tokenizer: the data were prepared with another tokenizer than the checkpoint's")
        if tokenizer.identity != known.identity:
            raise DataError(
                f"data.tokenizer: the data's documents {tokenizer.boundaries}, by the checkpoint's own files they "
                f"{known.boundaries}; lay those files beside the tokenizer.json"
            )

    def _files(self) -> dict[str, bytes]:
        """What a checkpoint keeps: the files of the model that this one comes from, else of the data's tokenizer."""
        if self.known_tokenizer is not None or self.tokenizer is None:
            return self.files
        return {**self.tokenizer.files, **self.files}

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Summed loss in nats, and the number of tokens it sums over; training and validation share it. Auxiliary
        losses are left for the training step."""
        targets = batch["targets"]
        head = partial(chunked_cross_entropy, targets=targets)
        ids, documents = batch["input_ids"], batch.get("document_ids")
        total, self._auxiliary = self.model(ids, documents, head=head, with_auxiliary=True)
        return total, (targets != IGNORE_INDEX).sum()

    def _mean_over_ranks(self, tokens: Tensor) -> Tensor:
        """Dividing by this, not by the own count, makes the gradient's mean over ranks the mean over tokens."""
        if self.trainer.world_size == 1:
            return tokens
        return self.trainer.strategy.reduce(tokens.float(), reduce_op="mean")
