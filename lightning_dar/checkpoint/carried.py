"""Files that say how to use a model: its tokenizer, chat templates, generation. They stay with it, unchanged."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_dar.errors import DataError
from lightning_dar.text.tokenizer import (
    BESIDE,
    BYTES_JSON,
    TOKENIZER_CONFIG,
    TOKENIZER_FILE,
    Files,
    Tokenizer,
    end_ids_of,
    files_in,
    is_one_of,
    json_object,
)

if TYPE_CHECKING:
    from lightning_dar.checkpoint.load import Checkpoint

FILES_KEY = "lightning_dar_files"  # in a .ckpt: name -> content
GENERATION_FILE = "generation_config.json"
CARRIED = (
    *BESIDE,
    GENERATION_FILE,
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
MAX_BYTES = 2**28


def read_carried(folder: Path) -> dict[str, bytes]:
    """Content by name. Raises DataError for a file that lies elsewhere (a link out), or is implausibly large."""
    contents = {}
    for name, path in files_in(folder, CARRIED).items():
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DataError(
                f"{folder}: '{name}' lies outside the folder; copy the model into one folder (cp -rL follows links)"
            )
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: larger than {MAX_BYTES >> 20} MiB, so not the file it should be")
        contents[name] = path.read_bytes()
    return contents


def packed(files: Files) -> dict[str, str]:
    """For a checkpoint of plain data, which has no type for any bytes: each byte as one character."""
    return {name: content.decode("latin-1") for name, content in files.items()}


def unpacked(files: Any) -> dict[str, bytes]:
    """Inverse of `packed`. Raises DataError where that is not what it made: a checkpoint may be anyone's."""
    if not isinstance(files, dict):
        raise DataError(f"its '{FILES_KEY}' is damaged: names and contents are needed")
    for name, content in files.items():
        if not (isinstance(name, str) and is_one_of(name, CARRIED) and isinstance(content, str)):
            raise DataError(f"its '{FILES_KEY}' holds {name!r}, which is no file of a model")
    try:
        return {name: content.encode("latin-1") for name, content in files.items()}
    except UnicodeEncodeError as error:
        raise DataError(f"its '{FILES_KEY}' is damaged ({error})") from error


def end_ids(hf_config: Mapping[str, Any] | None, files: Files) -> tuple[int, ...]:
    """Ids that end a text, by the `config.json` and `generation_config.json` that came with a model."""
    return tuple(dict.fromkeys([*end_ids_of(hf_config or {}), *end_ids_of(json_object(files, GENERATION_FILE))]))


def special_tokens(config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    """Makes a `config.json` name the ids that begin and end the tokenizer's texts; returns the files that tell
    transformers the same, for a model that has none of its own."""
    given = end_ids_of(config)
    ends = list(dict.fromkeys([tokenizer.end_id, *given] if tokenizer.has_end else given))
    if len(ends) > len(given):  # or it is named already
        config["eos_token_id"] = ends if given else tokenizer.end_id
    if len(tokenizer.begin_ids) == 1 and config.get("bos_token_id") is None:
        config["bos_token_id"] = tokenizer.begin_ids[0]
    files = {}
    if tokenizer.to_json() != BYTES_JSON:
        ids = {"eos_token": ends[0] if ends else None}
        ids |= {name: config.get(f"{name}_id") for name in ("bos_token", "pad_token")}
        named = {name: tokenizer.token(number) for name, number in ids.items() if type(number) is int}
        files[TOKENIZER_CONFIG] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],  # transformers 4 adds kinds of segments else
            **{name: token for name, token in named.items() if token},
        }
    if not given:
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        files[GENERATION_FILE] = {name: config[name] for name in names if config.get(name) is not None}
    return {name: json.dumps(content, indent=2) for name, content in files.items()}


def unnamed_end(files: Files, tokenizer: Tokenizer) -> str | None:
    """A line on a `generation_config.json` by which transformers does not stop where the tokenizer ends a text."""
    ids = end_ids_of(json_object(files, GENERATION_FILE))
    if not ids or not tokenizer.has_end or tokenizer.end_id in ids:
        return None
    return (
        f"{GENERATION_FILE}, kept as it is, ends a text at id {', '.join(map(str, ids))}; the tokenizer's own end, by "
        f"which texts end in training, is id {tokenizer.end_id}: add it there, or transformers goes on past it"
    )


def tokenizer_of(checkpoint: "Checkpoint") -> Tokenizer:
    """The tokenizer of a checkpoint. Raises DataError where it has none."""
    text = checkpoint.description["tokenizer"]
    if text is None:
        raise DataError(f"'{checkpoint.path}' has no tokenizer.json; lay the model's own beside its weights")
    try:
        return make_tokenizer(text, checkpoint.files, checkpoint.description.get("hf_config"))
    except DataError as error:
        raise DataError(f"'{checkpoint.path}': {error}") from error


def make_tokenizer(text: str, files: Mapping[str, bytes], hf_config: Mapping[str, Any] | None) -> Tokenizer:
    """The tokenizer that a tokenizer.json, the files beside it and a `config.json` make together."""
    config = {} if hf_config is None else {"config.json": json.dumps(hf_config).encode()}
    return Tokenizer(text, {**files, **config})


def own_tokenizer(checkpoint: "Checkpoint", folder: Path = Path("data/tokenizers")) -> str | None:
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
