"""The command-line settings that a checkpoint carries."""

from typing import Any

from lightning_dar.checkpoint.description import DESCRIPTION_KEY

TRAINER_KEY = "lightning_dar_trainer"


def settings_of(checkpoint: dict[str, Any], resume: bool) -> dict[str, Any]:
    """A config for LightningCLI: `model` and `data`, and to resume also how the trainer was set up."""
    description = checkpoint[DESCRIPTION_KEY]
    settings = {
        "model": {
            **description["architecture"],
            "residual": description["residual"],
            "optimizer": checkpoint["hyper_parameters"]["optimizer"],
        },
        "data": _plain(checkpoint.get("datamodule_hyper_parameters", {})),
    }
    saved = checkpoint.get(TRAINER_KEY, {})
    if resume:
        return settings | saved
    precision = saved.get("trainer", {}).get("precision")
    return settings | {"trainer": {"logger": False, "precision": precision}}


def _plain(hyper_parameters: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in hyper_parameters.items() if not key.startswith("_")}
