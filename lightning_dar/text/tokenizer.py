"""Tokenizers: what encodes text, and the files beside a tokenizer.json that say how its texts begin and end."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lightning_dar.errors import DataError, UsageError

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


_NUM_BYTES = 256
BYTES_JSON = '{"type": "bytes"}'


class Tokenizer:
    """Encodes text without adding special tokens; `document` adds those that begin and end one.

    `decode(encode(text)) == text` for `bytes` and `bpe:N`. A document's end is `end_id`, which no text encodes to. The
    tokens before and after it are those of the post-processor in the tokenizer.json, as transformers adds them.

    Attributes:
        vocab_size: one more than the largest id.
        begin_ids: what a document and a prompt begin with; mostly nothing, or one token.
        closing_ids: what a document ends with, `end_id` among it.
        files: what an equal tokenizer needs beside `to_json()`, content by name.
        hash: sha256 of `to_json()`.
    """

    def __init__(self, json_text: str, files: Files | None = None) -> None:
        """`files` lie beside the tokenizer.json: its own ones, and the `MODEL_CONFIGS` of its model.

        Raises:
            DataError: `json_text` is no tokenizer, or a file names an end token that it does not have.
        """
        self._json = json_text
        self.hash = hashlib.sha256(json_text.encode()).hexdigest()
        self.files = {name: content for name, content in (files or {}).items() if is_one_of(name, BESIDE)}
        self.begin_ids: tuple[int, ...] = ()
        if json_text == BYTES_JSON:
            self._backend, self._end = None, _NUM_BYTES
            self.vocab_size, self.closing_ids = _NUM_BYTES + 1, (_NUM_BYTES,)
            return
        try:
            self._backend = _library().Tokenizer.from_str(json_text)
        except Exception as error:  # the library raises nothing more precise
            raise DataError(f"not a tokenizer of the tokenizers library ({error})") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True  # "<|endoftext|>" inside a text is text, not a boundary
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self._end = end_in(vocabulary, files or {})
        self.begin_ids, added = self._added_ids(vocabulary)
        own_end = () if self._end is None or self._end in added else (self._end,)
        self.closing_ids = (*added, *own_end)
        if end_in(vocabulary, self.files) != self._end:  # only the model names it
            self.files[MODEL_CONFIGS[-1]] = json.dumps({"eos_token_id": self._end}).encode()

    @classmethod
    def from_json(cls, json_text: str) -> "Tokenizer":
        return cls(json_text)

    def to_json(self) -> str:
        return self._json

    @property
    def end_id(self) -> int:
        """Raises DataError where nothing names the token that ends a text."""
        if self._end is None:
            raise DataError(
                f"a tokenizer without an end token (name it in {TOKENIZER_CONFIG} beside it, such as "
                f'{{"eos_token": "<end>"}}; without a word it is one of {" ".join(END_TOKENS)})'
            )
        return self._end

    @property
    def has_end(self) -> bool:
        return self._end is not None

    @property
    def identity(self) -> tuple:
        """Equal where the same text becomes the same ids, in training and in prompts."""
        return self.hash, self.begin_ids, self.closing_ids

    @property
    def boundaries(self) -> str:
        return boundaries_in_words(self.begin_ids, self.closing_ids)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if self._backend is None:
            return [list(text.encode()) for text in texts]
        return [row.ids for row in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def document(self, ids: list[int], starts: bool = True, ends: bool = True) -> list[int]:
        """`ids`, the text of a document or a part of it, with what begins and ends a document where it does."""
        return [*(self.begin_ids if starts else ()), *ids, *(self.closing_ids if ends else ())]

    def encode_prompt(self, text: str) -> list[int]:
        """Encodes a prompt as documents begin; special tokens in it are recognised."""
        if self._backend is None:
            return self.encode(text)
        self._backend.encode_special_tokens = False
        try:
            return self.document(self._backend.encode(text, add_special_tokens=False).ids, ends=False)
        finally:
            self._backend.encode_special_tokens = True

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens, the end token among them, decode to nothing."""
        if self._backend is None:
            return bytes(i for i in ids if i < _NUM_BYTES).decode("utf-8", "replace")
        return self._backend.decode(list(ids), skip_special_tokens=True)

    def token(self, number: int) -> str:
        """The text that the vocabulary has for an id; empty for `bytes`."""
        return "" if self._backend is None else self._backend.id_to_token(number) or ""

    def save(self, folder: Path) -> None:
        """Writes the files from which `load_tokenizer` makes an equal one."""
        for name, content in {TOKENIZER_FILE: self._json.encode(), **self.files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    def _added_ids(self, vocabulary: Iterable[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the post-processor puts before and after a text."""
        for text in ("a", *vocabulary):
            row = self._backend.encode(text, add_special_tokens=True)
            if 0 in row.special_tokens_mask:
                first = row.special_tokens_mask.index(0)
                last = len(row.ids) - row.special_tokens_mask[::-1].index(0)
                return tuple(row.ids[:first]), tuple(row.ids[last:])
        return (), ()


def boundaries_in_words(begin_ids: Sequence[int], closing_ids: Sequence[int]) -> str:
    """What documents do, to follow their name in a message."""
    begin, end = (f"with id {', '.join(map(str, ids))}" if ids else "" for ids in (begin_ids, closing_ids))
    return f"begin {begin} and end {end}" if begin else f"end {end or 'with no token'}"


def bpe_size(spec: str) -> int | None:
    """N of `bpe:N`, None for any other spec.

    Raises:
        UsageError: N is no number, or too small for the 256 bytes and the end token.
    """
    kind, _, size = spec.partition(":")
    if kind != "bpe":
        return None
    if not size.isdecimal() or int(size) <= _NUM_BYTES:
        raise UsageError(f"data.tokenizer: {spec!r}; bpe:N needs a number N >= {_NUM_BYTES + 1}")
    return int(size)


def check_spec(spec: str) -> None:
    """Raises UsageError where `spec` is neither `bytes`, nor `bpe:N`, nor looks like a path."""
    if spec != "bytes" and bpe_size(spec) is None and not (spec.endswith(".json") or Path(spec).exists()):
        raise UsageError(f"data.tokenizer: {spec!r}; known are bytes, bpe:N and a path to a tokenizer.json")


def load_tokenizer(spec: str) -> Tokenizer:
    """`bytes`, or a tokenizer.json given by its path or its folder, with the files beside it.

    Raises:
        DataError: the file is missing, is no tokenizer, or nothing names its end token.
    """
    if spec == "bytes":
        return Tokenizer(BYTES_JSON)
    path = Path(spec).expanduser()
    path = path / TOKENIZER_FILE if path.is_dir() else path
    try:
        beside = files_in(path.parent, (*BESIDE, *MODEL_CONFIGS))
        files = {name: other.read_bytes() for name, other in beside.items()}
        tokenizer = Tokenizer(path.read_bytes().decode(), files)
        _ = tokenizer.end_id  # raises where there is none
        return tokenizer
    except OSError as error:
        raise DataError(f"data.tokenizer: cannot read {path} ({error.strerror})") from error
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(f"data.tokenizer: {path}: {error}") from error


def train_bpe(vocab_size: int, texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens, the end token (id 0) included; deterministic."""
    library = _library()
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend = library.Tokenizer(library.models.BPE())
    backend.pre_tokenizer = byte_level
    backend.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_TOKENS[0]],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend.to_str())


def _library():
    # Preparation runs its own threads, and data loader workers fork later: the library's own thread pool
    # would oversubscribe the one and warn about the other. The variable is the only switch it offers.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers
    import tokenizers.decoders
    import tokenizers.models
    import tokenizers.pre_tokenizers
    import tokenizers.trainers

    return tokenizers
