"""What a checkpoint holds of its run beside the model, the optimizer and Lightning's own counts: `RunState`."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:  # commands without a trainer do not load it
    from lightning.pytorch import Trainer

STATE_KEY = "lightning_dar_run"  # in a checkpoint
TENSORBOARD = "lightning.pytorch.loggers.tensorboard.TensorBoardLogger"


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The state of a run, in plain types that load with `weights_only=True`. The position in the data is Lightning's
    `TextData` entry, written by the data module.

    Attributes:
        settings: the sections `trainer` and `seed_everything` of its config.
        logs: class (`logger`) and `version` of each logger: the run that the checkpoint belongs to.
        random: the random states of each rank, in order, as `random_state` gives them.
        skipped_steps: optimizer steps left out because they were not finite.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    logs: list[dict[str, Any]] = field(default_factory=list)
    random: list[dict[str, Any]] = field(default_factory=list)
    skipped_steps: int = 0


def state_of(content: Mapping[str, Any]) -> RunState:
    """The state in the content of a checkpoint; up to format 1 its parts had keys of their own."""
    state = content.get(STATE_KEY)
    if isinstance(state, dict):
        return RunState(**state)
    if isinstance(state, str | int):  # the version of the only logger there was
        state = [{"logger": TENSORBOARD, "version": state}]
    return RunState(
        settings=content.get("lightning_dar_trainer", {}),
        logs=state or [],
        random=content.get("lightning_dar_random", []),
        skipped_steps=content.get("lightning_dar_skipped_steps", 0),
    )


def add_state(checkpoint: dict[str, Any], **parts: Any) -> None:
    """Adds fields of `RunState` to a checkpoint that is being saved; callbacks and module know one part each."""
    assert parts.keys() <= RunState.__dataclass_fields__.keys()
    checkpoint[STATE_KEY] = {**checkpoint.get(STATE_KEY, {}), **parts}


def random_state(device: torch.device) -> dict[str, Any]:
    """The global random states of Python, numpy, torch on the CPU and, where `device` is one, of that CUDA GPU."""
    name, keys, *rest = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Sets what `random_state` has given."""
    name, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def from_all_ranks(trainer: "Trainer", value: Any) -> list[Any]:
    """`value` of every rank, in their order; all ranks must call it."""
    if trainer.world_size == 1:
        return [value]
    values = [None] * trainer.world_size
    torch.distributed.all_gather_object(values, value)
    return values
