"""Opening checkpoints: Lightning's single files."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from lightning_dar.checkpoint.description import DESCRIPTION_KEY, FORMAT
from lightning_dar.errors import DataError, UsageError
from lightning_dar.model import Transformer, TransformerConfig, build_transformer
from lightning_dar.residual import ResidualConfig

MODEL_PREFIX = "model."


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The whole checkpoint, its tensors mapped from the file and read only when used.

    Raises:
        UsageError: no such file.
        DataError: not a checkpoint of this project, or a damaged one.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"checkpoint '{path}' does not exist")
    if not path.is_file():
        raise DataError(f"checkpoint '{path}' is a folder: give the .ckpt file in it")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, UnpicklingError, EOFError, ValueError, KeyError, OSError) as error:
        raise DataError(f"'{path}' is no checkpoint, or a damaged one: give a .ckpt file of a finished save") from error
    if not isinstance(checkpoint, dict) or DESCRIPTION_KEY not in checkpoint or "state_dict" not in checkpoint:
        raise DataError(f"'{path}' was not written by lightning_dar: it has no '{DESCRIPTION_KEY}' entry")
    if checkpoint[DESCRIPTION_KEY]["format"] > FORMAT:
        raise DataError(f"'{path}' was written by a later lightning_dar ({checkpoint[DESCRIPTION_KEY]['version']})")
    return checkpoint


def load_model(path: str | Path) -> Transformer:
    """The model of a checkpoint, on the CPU, in evaluation mode.

    Raises:
        UsageError: no such file, or a strategy whose plugin is not loaded (named).
        DataError: not a checkpoint of this project, or a damaged one.
    """
    checkpoint = read_checkpoint(path)
    description = checkpoint[DESCRIPTION_KEY]
    with torch.device("meta"):
        model = build_transformer(
            TransformerConfig(**description["architecture"]),
            ResidualConfig(**description["residual"]),
            description["plugin"],
        )
    weights = {
        key.removeprefix(MODEL_PREFIX): tensor
        for key, tensor in checkpoint["state_dict"].items()
        if key.startswith(MODEL_PREFIX)
    }
    model.load_state_dict(weights, assign=True)
    return model.eval()
