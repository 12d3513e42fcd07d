"""A checkpoint under inspection: its model on a device, in the precision that it was trained in, and its name."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from lightning_dar.checkpoint.load import Checkpoint, load_weights
from lightning_dar.diagnostics.wrapper import lays_open
from lightning_dar.model import Transformer
from lightning_dar.run.state import state_of

MIXED = {"bf16-mixed": torch.bfloat16, "bf16": torch.bfloat16, "16-mixed": torch.float16, "16": torch.float16}
WHOLE = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64, "64": torch.float64}
SAYS_LITTLE = ("last.ckpt", "checkpoints")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An opened model."""

    name: str
    checkpoint: Checkpoint
    model: Transformer
    precision: str  # as the trainer calls it

    @property
    def device(self) -> torch.device:
        return self.model.embed.weight.device

    @property
    def num_sites(self) -> int:
        return len(self.model.sublayers)

    @property
    def routes(self) -> bool:
        """Whether its reads can be laid open."""
        return lays_open(self.model.residual)

    @property
    def can_be_changed(self) -> bool:
        """Whether a read can be replaced by another: separate query, key and value inputs are not one read."""
        return self.model.residual.attention_inputs == 1

    def autocast(self) -> AbstractContextManager:
        """The precision of a forward, as `validate` has it."""
        dtype = MIXED.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)


def load_subject(checkpoint: Checkpoint, name: str, device: torch.device) -> Subject:
    """In fp32, unless trained in another precision, whatever the weights are saved in: as `validate` builds it.

    Raises:
        DataError: the tensors do not fit the checkpoint's description.
    """
    precision = str((state_of(checkpoint.content).settings.get("trainer") or {}).get("precision") or "32-true")
    model = checkpoint.build()
    load_weights(model, checkpoint)
    model = model.to(device=device, dtype=WHOLE.get(precision, torch.float32)).eval().requires_grad_(False)
    return Subject(name=name, checkpoint=checkpoint, model=model, precision=precision)


def names_of(paths: Sequence[str]) -> list[str]:
    """A short name for each checkpoint: the part of its path that tells it from the others."""
    split = [Path(path).absolute().parts for path in paths]
    if len(split) == 1:
        telling = [part for part in split[0] if part not in SAYS_LITTLE]
        return [telling[-1].removesuffix(".ckpt")]
    start = _shared(split)
    end = _shared([parts[:start:-1] for parts in split])
    names = ["/".join(parts[start : len(parts) - end]).removesuffix(".ckpt") for parts in split]
    return names if all(names) and len(set(names)) == len(names) else list(paths)


def _shared(split: Sequence[Sequence[str]]) -> int:
    """Parts at the start that all have."""
    count = 0
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return count
