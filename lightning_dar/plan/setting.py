"""What a plan is made for: the run, its precision, the GPUs."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from lightning_dar.errors import UsageError
from lightning_dar.model import TransformerConfig

MODES = ("none", "sublayer", "full")


Checkpointing = str | float


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Dtypes of one training step."""

    weights: torch.dtype
    """Of parameters, their gradients and both of AdamW's averages."""

    compute: torch.dtype
    """Of what enters the matrix products, and of a sublayer's output."""

    stream: torch.dtype
    """Of the embedding, so of the residual stream."""

    autocast: bool
    """Whether PyTorch casts at each operation. Norms then run in fp32, and every product keeps a copy of its own, in
    half precision, of what enters it: of fp32 weights too, from the forward to the backward."""


def precision_of(name: str) -> Precision:
    """The dtypes of the trainer's `precision`, such as bf16-mixed. Raises UsageError for one that is not planned
    for."""
    name = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}.get(name, name)
    half, full = (torch.float16 if name.startswith("16") else torch.bfloat16), torch.float32
    if name == "32-true":
        return Precision(weights=full, compute=full, stream=full, autocast=False)
    if name in ("bf16-true", "16-true"):
        return Precision(weights=half, compute=half, stream=half, autocast=False)
    if name in ("bf16-mixed", "16-mixed"):
        return Precision(weights=full, compute=half, stream=full, autocast=True)
    raise UsageError(f"trainer.precision={name}: plan knows 32-true, bf16-mixed, bf16-true, 16-mixed and 16-true")


TERA, GIGA, GIB = 10**12, 10**9, 2**30


@dataclass(frozen=True, kw_only=True)
class Device:
    """One GPU, and how it is linked to others."""

    name: str
    peak_bf16: float
    """FLOP/s of bf16 and fp16 matrix products with fp32 sums."""

    peak_fp32: float
    """FLOP/s of fp32 matrix products outside the tensor cores, PyTorch's default."""

    memory: int
    """Bytes."""

    bandwidth: float
    """Bytes/s between the GPU and its memory."""

    link: float
    """Bytes/s that a GPU sends to the others of its node, one direction."""

    node_network: float
    """Bytes/s between nodes, of all the network cards of a usual node of eight together, one direction."""

    def peak(self, precision: str) -> float:
        """FLOP/s in a precision of the trainer, such as bf16-mixed or 32-true."""
        return self.peak_bf16 if precision.startswith(("bf16", "16", "transformer-engine")) else self.peak_fp32


def _device(name: str, bf16: float, fp32: float, memory: int, bandwidth: int, link: int, network: int) -> Device:
    """TFLOP/s, TFLOP/s, GiB, GB/s, GB/s, GB/s."""
    return Device(
        name=name,
        peak_bf16=bf16 * TERA,
        peak_fp32=fp32 * TERA,
        memory=memory * GIB,
        bandwidth=bandwidth * GIGA,
        link=link * GIGA,
        node_network=network * GIGA,
    )


DEVICES = {
    device.name: device
    for device in (
        _device("b200", 2250, 75, 179, 7700, 900, 400),
        _device("h200", 989, 67, 140, 4800, 450, 400),
        _device("h100", 989, 67, 80, 3350, 450, 400),
        _device("h100-pcie", 756, 51, 80, 2000, 64, 50),
        _device("h20", 148, 44, 96, 4000, 450, 400),
        _device("a100", 312, 19.5, 80, 2039, 300, 200),
        _device("a100-40gb", 312, 19.5, 40, 1555, 300, 200),
        _device("a100-pcie", 312, 19.5, 80, 1935, 32, 25),
        _device("l40s", 362, 91.6, 45, 864, 32, 25),
        _device("l4", 121, 30.3, 22, 300, 32, 12),
        _device("a10", 125, 31.2, 22, 600, 32, 12),
        _device("rtx4090", 165, 82.6, 24, 1008, 32, 3),
        _device("rtx3090", 71, 35.6, 24, 936, 32, 3),
    )
}

_NAMES = (  # words that all occur in what CUDA calls the device -> its entry; the first that fits
    (("laptop",), None),
    (("h100", "pcie"), "h100-pcie"),
    (("h100", "hbm3"), "h100"),
    (("h200", "nvl"), None),  # another clock than any entry's
    (("h200",), "h200"),
    (("b200",), "b200"),
    (("h20",), "h20"),
    (("a100", "40gb"), "a100-40gb"),
    (("a100", "pcie"), "a100-pcie"),
    (("a100", "80gb"), "a100"),
    (("l40s",), "l40s"),
    (("l4",), "l4"),
    (("a10",), "a10"),
    (("geforce", "rtx", "4090"), "rtx4090"),
    (("geforce", "rtx", "3090"), "rtx3090"),
)


def device_by_name(name: str) -> Device:
    """The GPU of this name in the table. Raises UsageError for another one."""
    if name.lower() not in DEVICES:
        raise UsageError(f"--gpu {name}: unknown; known: {', '.join(DEVICES)}")
    return DEVICES[name.lower()]


def device_of(cuda_name: str) -> Device | None:
    """The GPU by the name that CUDA gives it, such as `NVIDIA H100 80GB HBM3`; None for one whose peak is not known."""
    words = set(cuda_name.lower().replace("-", " ").split())
    for needed, entry in _NAMES:
        if words.issuperset(needed):
            return None if entry is None else DEVICES[entry]
    return None


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
        """Tokens in the micro-batch of one GPU."""
        return self.batch_size * self.seq_len

    @property
    def tokens_per_step(self) -> int:
        """Tokens of all GPUs and micro-batches of a step."""
        return self.tokens_per_batch * self.accumulate * self.gpus

    def with_batch(self, batch_size: int) -> "Setting":
        """Another micro-batch and the same tokens an optimizer step; `batch_size` divides the present one."""
        return replace(self, batch_size=batch_size, accumulate=self.accumulate * self.batch_size // batch_size)
