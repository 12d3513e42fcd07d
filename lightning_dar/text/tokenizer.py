"""Text <-> token ids: raw bytes, a byte-level BPE trained on the source, or a tokenizer.json."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning_dar.errors import DataError, UsageError
from lightning_dar.text.tokenizer_files import (
    BESIDE,
    END_TOKENS,
    MODEL_CONFIGS,
    TOKENIZER_CONFIG,
    TOKENIZER_FILE,
    Files,
    end_in,
    files_in,
    is_one_of,
)

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
        """As documents begin; special tokens in it are recognised."""
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
