"""The files that make up a tokenizer, and which of its tokens end a text by them."""

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lightning_dar.errors import DataError

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
MODEL_CONFIGS = ("config.json", "generation_config.json")  # of a model; they name ids that end its texts
BESIDE = (  # what a tokenizer.json comes with
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "tokenizer.model.v*",
    "spiece.model",
    "sentencepiece.bpe.model",
    "*.tiktoken",
    "tiktoken.model",
    "tekken.json",
    "tokenization_*.py",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>")  # where no file names one

Files = Mapping[str, bytes]  # content by name


def is_one_of(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name, `folder/file` for one in a folder, fits one of the patterns, part by part."""
    parts = name.split("/")
    return any(
        len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
        for wanted in (pattern.split("/") for pattern in patterns)
    )


def files_in(folder: Path, patterns: Iterable[str]) -> dict[str, Path]:
    """name -> path of the files that fit one of the patterns, sorted."""
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix(): path for path in sorted(found)}


def end_in(vocabulary: Mapping[str, int], files: Files) -> int | None:
    """The id that ends a text: as `tokenizer_config.json` names it (or `special_tokens_map.json`, where transformers
    goes by that), then `config.json`, then `generation_config.json`; else a well-known token, or None.

    Raises:
        DataError: names the file whose end token the vocabulary does not have.
    """
    file, token = _named_token(files)
    if token is not None:
        if token not in vocabulary:
            raise DataError(
                f"{file}: eos_token {token!r} is not a token of {TOKENIZER_FILE}; AutoTokenizer.from_pretrained(FOLDER)"
                ".save_pretrained(FOLDER) adds it, or name one that is"
            )
        return vocabulary[token]
    known = set(vocabulary.values())
    for file in MODEL_CONFIGS:
        ids = end_ids_of(json_object(files, file))
        if ids:
            if ids[0] not in known:
                raise DataError(f"{file}: eos_token_id {ids[0]} is not an id of {TOKENIZER_FILE}")
            return ids[0]
    return next((vocabulary[token] for token in END_TOKENS if token in vocabulary), None)


def end_ids_of(config: Mapping[str, Any]) -> list[int]:
    """`eos_token_id` of a `config.json` or `generation_config.json`: an id, a list of them, or nothing."""
    ids = config.get("eos_token_id")
    return [number for number in (ids if isinstance(ids, list) else [ids]) if type(number) is int]


def json_object(files: Files, name: str) -> dict[str, Any]:
    """The content of one of the files, empty where it is missing. Raises DataError where it is no JSON object."""
    if name not in files:
        return {}
    try:
        content = json.loads(files[name])
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{name}: a JSON object is needed")
    return content


def _named_token(files: Files) -> tuple[str, str | None]:
    """(file, text) of the end token."""
    config = json_object(files, TOKENIZER_CONFIG)
    file, token = TOKENIZER_CONFIG, config.get("eos_token")
    if "added_tokens_decoder" not in config and (other := json_object(files, SPECIAL_TOKENS).get("eos_token")):
        file, token = SPECIAL_TOKENS, other
    if isinstance(token, dict):  # an AddedToken with its options
        token = token.get("content")
    if not isinstance(token, str | None):
        raise DataError(f"{file}: eos_token {token!r} is no token; a string is needed")
    return file, token or None
