"""The command-line settings that a checkpoint carries."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_dar.checkpoint.load import CONFIG_FILE, DATA_KEY, Checkpoint
from lightning_dar.errors import DataError
from lightning_dar.text.tokenizer import BYTES_JSON, Tokenizer
from lightning_dar.text.tokenizer_files import TOKENIZER_FILE

TRAINER_KEY = "lightning_dar_trainer"
MODEL_KEY = "hyper_parameters"
RUNNING = ("activation_checkpointing", "compile", "non_finite", "max_skipped_steps")


def settings_of(checkpoint: Checkpoint, resume: bool) -> dict[str, Any]:
    """A config for LightningCLI: `model`, `data` and precision; to resume, all of the trainer's set-up."""
    content, model = checkpoint.content, checkpoint.content.get(MODEL_KEY, {})
    settings = {
        "model": {
            **checkpoint.description["architecture"],
            "residual": checkpoint.description["residual"],
            **{key: model[key] for key in ("optimizer", "freeze_base", *RUNNING) if key in model},
        },
        "data": _plain(content.get(DATA_KEY, {})),
    }
    saved = content.get(TRAINER_KEY, {})
    if resume:
        return settings | saved
    return settings | {"trainer": {"precision": saved.get("trainer", {}).get("precision")}}


def portable_settings(content: dict[str, Any]) -> dict[str, Any]:
    """The part of a checkpoint's settings that a converted one keeps, as JSON has it: optimizer, data, precision."""
    kept = {}
    if "optimizer" in content.get(MODEL_KEY, {}):
        kept[MODEL_KEY] = {"optimizer": content[MODEL_KEY]["optimizer"]}
    if DATA_KEY in content:
        kept[DATA_KEY] = _plain(content[DATA_KEY])
    if TRAINER_KEY in content:
        kept[TRAINER_KEY] = {"trainer": {"precision": content[TRAINER_KEY].get("trainer", {}).get("precision")}}
    return json.loads(json.dumps(kept))


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The checkpoint's own. Raises DataError where it has none."""
    text = checkpoint.description["tokenizer"]
    if text is None:
        raise DataError(f"'{checkpoint.path}' has no tokenizer.json; lay the model's own beside its weights")
    try:
        return make_tokenizer(text, checkpoint.files, checkpoint.description.get("hf_config"))
    except DataError as error:
        raise DataError(f"'{checkpoint.path}': {error}") from error


def make_tokenizer(text: str, files: Mapping[str, bytes], hf_config: Mapping[str, Any] | None) -> Tokenizer:
    """From a tokenizer.json, the files that came with a model, and its `config.json`."""
    config = {} if hf_config is None else {CONFIG_FILE: json.dumps(hf_config).encode()}
    return Tokenizer(text, {**files, **config})


def own_tokenizer(checkpoint: Checkpoint, folder: Path = Path("data/tokenizers")) -> str | None:
    """Lays the checkpoint's own tokenizer as files and returns its path, for other text than it was trained on.

    None where the checkpoint has none; `bytes` needs no file.
    """
    text = checkpoint.description["tokenizer"]
    if text is None:
        return None
    if text == BYTES_JSON:
        return "bytes"
    tokenizer = tokenizer_of(checkpoint)
    digest = hashlib.sha256(repr((tokenizer.identity, sorted(tokenizer.files.items()))).encode()).hexdigest()
    place = folder / digest[:16]
    if not place.exists():
        partial = folder / f".{place.name}.{os.getpid()}"  # another process may write the same
        tokenizer.save(partial)
        try:
            partial.rename(place)
        except OSError:
            if not place.exists():
                raise
            shutil.rmtree(partial)
    return str(place / TOKENIZER_FILE)


def _plain(hyper_parameters: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in hyper_parameters.items() if not key.startswith("_")}
