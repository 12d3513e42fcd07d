"""What a plan is made for: the part of a run's config that sizes depend on, and the GPUs."""

from dataclasses import dataclass, replace
from typing import Literal

from lightning_dar.errors import UsageError
from lightning_dar.model import TransformerConfig
from lightning_dar.plan.activations import MODES, Checkpointing
from lightning_dar.plan.devices import Device
from lightning_dar.plan.precision import Precision, precision_of

Optimizer = Literal["adamw", "muon"]
STRATEGIES = ("single", "ddp", "fsdp", "fsdp2")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run, but for its residual strategy. Raises UsageError for values that cannot be.

    Args:
        config: the architecture.
        seq_len: tokens a window.
        batch_size: windows a GPU and micro-batch.
        accumulate: micro-batches an optimizer step.
        precision: the trainer's, such as bf16-mixed.
        strategy: single, ddp, fsdp or fsdp2.
        checkpointing: none, sublayer, full, or the share of the layers.
        optimizer: adamw or muon.
        gpus: in all.
        gpus_per_node: of those, in one node.
        device: the kind of GPU.
    """

    config: TransformerConfig
    seq_len: int
    batch_size: int
    accumulate: int = 1
    precision: str = "32-true"
    strategy: str = "single"
    checkpointing: Checkpointing = "none"
    optimizer: Optimizer = "adamw"
    gpus: int = 1
    gpus_per_node: int = 8
    device: Device

    def __post_init__(self) -> None:
        for name, value in (
            ("data.seq_len", self.seq_len),
            ("data.batch_size", self.batch_size),
            ("trainer.accumulate_grad_batches", self.accumulate),
            ("--gpus", self.gpus),
            ("--gpus_per_node", self.gpus_per_node),
        ):
            if value < 1:
                raise UsageError(f"{name}={value}: must be at least 1")
        mode = self.checkpointing
        if mode not in MODES if isinstance(mode, str) else not 0 <= mode <= 1:
            raise UsageError(
                f"model.activation_checkpointing={mode}: must be {', '.join(MODES)}, or a share of the layers, 0 to 1"
            )
        if self.strategy not in STRATEGIES:
            raise UsageError(f"trainer.strategy={self.strategy}: plan knows {', '.join(STRATEGIES)}")
        if self.strategy == "fsdp" and self.optimizer == "muon":
            raise UsageError(
                "model.optimizer.name=muon: FSDP cuts its matrices; use lightning_dar.training.FSDP2, or ddp"
            )
        if self.strategy == "single" and self.gpus > 1:
            raise UsageError(f"trainer.strategy: {self.gpus} GPUs need ddp or lightning_dar.training.FSDP2")
        self.dtypes  # noqa: B018  refuses an unknown precision

    @property
    def dtypes(self) -> Precision:
        return precision_of(self.precision)

    @property
    def sharded(self) -> bool:
        return self.strategy in ("fsdp", "fsdp2")

    @property
    def tokens_per_batch(self) -> int:
        """Of one GPU's micro-batch."""
        return self.batch_size * self.seq_len

    @property
    def tokens_per_step(self) -> int:
        """Of all GPUs and micro-batches."""
        return self.tokens_per_batch * self.accumulate * self.gpus

    def with_batch(self, batch_size: int) -> "Setting":
        """Another micro-batch and the same tokens an optimizer step; `batch_size` divides the present one."""
        return replace(self, batch_size=batch_size, accumulate=self.accumulate * self.batch_size // batch_size)
