"""Text <-> token ids: raw bytes, a byte-level BPE trained on the source, or a tokenizer.json."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning_dar.errors import DataError, UsageError

END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>")
_NUM_BYTES = 256
BYTES_JSON = '{"type": "bytes"}'


class Tokenizer:
    """Encodes text without adding special tokens; a document's end is `end_id`, which no text encodes to.

    `decode(encode(text)) == text` for `bytes` and `bpe:N`.

    Attributes:
        vocab_size: one more than the largest id.
        end_id: the id that ends a document.
        end_token: its text; empty for `bytes`.
        hash: sha256 of `to_json()`.
    """

    def __init__(self, json_text: str) -> None:
        """Raises DataError where `json_text` is no tokenizer, or has none of `END_TOKENS`."""
        self._json = json_text
        self.hash = hashlib.sha256(json_text.encode()).hexdigest()
        if json_text == BYTES_JSON:
            self._backend = None
            self.vocab_size, self.end_id, self.end_token = _NUM_BYTES + 1, _NUM_BYTES, ""
            return
        try:
            self._backend = _library().Tokenizer.from_str(json_text)
        except Exception as error:  # the library raises nothing more precise
            raise DataError(f"not a tokenizer of the tokenizers library ({error})") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True  # "<|endoftext|>" inside a text is text, not a boundary
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        ends = [token for token in END_TOKENS if token in vocabulary]
        if not ends:
            raise DataError(f"a tokenizer without an end token (one of {' '.join(END_TOKENS)})")
        self.vocab_size, self.end_id = max(vocabulary.values()) + 1, vocabulary[ends[0]]
        self.end_token = ends[0]

    @classmethod
    def from_json(cls, json_text: str) -> "Tokenizer":
        return cls(json_text)

    def to_json(self) -> str:
        return self._json

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if self._backend is None:
            return [list(text.encode()) for text in texts]
        return [row.ids for row in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_prompt(self, text: str) -> list[int]:
        """As the model's own tools encode a prompt: special tokens are recognised, and added where its template has
        some (a first token, say)."""
        if self._backend is None:
            return self.encode(text)
        self._backend.encode_special_tokens = False
        try:
            return self._backend.encode(text, add_special_tokens=True).ids
        finally:
            self._backend.encode_special_tokens = True

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens, the end token among them, decode to nothing."""
        if self._backend is None:
            return bytes(i for i in ids if i < _NUM_BYTES).decode("utf-8", "replace")
        return self._backend.decode(list(ids), skip_special_tokens=True)


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
    """`bytes`, or a tokenizer.json given by its path or its folder.

    Raises:
        DataError: the file is missing, is no tokenizer, or has no end token.
    """
    if spec == "bytes":
        return Tokenizer(BYTES_JSON)
    path = Path(spec).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        return Tokenizer(path.read_text(encoding="utf-8"))
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
