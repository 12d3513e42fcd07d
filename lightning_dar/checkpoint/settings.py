"""The command-line settings that a checkpoint carries."""

import hashlib
from pathlib import Path
from typing import Any

from lightning_dar.checkpoint.description import DESCRIPTION_KEY

TRAINER_KEY = "lightning_dar_trainer"


def settings_of(checkpoint: dict[str, Any], resume: bool) -> dict[str, Any]:
    """A config for LightningCLI: `model`, `data` and precision; to resume, all of the trainer's set-up."""
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
    return settings | {"trainer": {"precision": saved.get("trainer", {}).get("precision")}}


def own_tokenizer(checkpoint: dict[str, Any], folder: Path = Path("data/tokenizers")) -> str | None:
    """Lays the checkpoint's own tokenizer as a file and returns its path, for other text than it was trained on.

    None where the checkpoint has none, or one that needs no file (`bytes`).
    """
    text = checkpoint[DESCRIPTION_KEY]["tokenizer"]
    if text is None or checkpoint.get("datamodule_hyper_parameters", {}).get("tokenizer") == "bytes":
        return None
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(path)


def _plain(hyper_parameters: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in hyper_parameters.items() if not key.startswith("_")}
