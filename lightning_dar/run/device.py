"""The device that a command without a trainer runs on."""

import torch

from lightning_dar.errors import UsageError


def find_device(name: str) -> torch.device:
    """By name; `auto` is the fastest there is. Raises UsageError for one that cannot be used here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {name}: not usable here ({str(error).splitlines()[0]})") from error
