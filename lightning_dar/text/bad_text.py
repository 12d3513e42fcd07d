"""Which documents are no text, and what becomes of them: one rule for every format.

A document is text where it is a string, valid UTF-8, with something but white space and without NUL characters and lone
surrogates; a byte order mark of UTF-8 at its start does not count. What is not is left out and counted by kind, or
refused. Damage to a file itself (JSON that does not parse, a parquet or compressed file that is cut off) is an error.
"""

import codecs
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Literal

from lightning_dar.errors import DataError

OnBadText = Literal["skip", "refuse"]

_MARKS = {  # at the start of what is not UTF-8; the longer ones first
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


class NotText(ValueError):
    """Why a document is no text: `kind` to count by, what to say of this one, and the line of it (from 1)."""

    def __init__(self, kind: str, says: str, line: int = 1) -> None:
        super().__init__(says)
        self.kind, self.line = kind, line


class BadText:
    """What becomes of documents that are no text; `counts` has how many were left out, by kind."""

    def __init__(self, on_bad_text: OnBadText = "skip") -> None:
        self._refuse = on_bad_text == "refuse"
        self.counts: Counter[str] = Counter()
        self._first: str | None = None

    def add(self, error: NotText, place: Callable[[], str]) -> None:
        """Counts the document, or raises DataError with its place."""
        if self._refuse:
            raise DataError(f"{place()}: {error}; mend it, or leave such documents out by data.bad_text skip")
        self.counts[error.kind] += 1
        self._first = self._first or str(error)

    def report(self) -> None:
        """Says in a line what was left out, if anything was."""
        if self.counts:
            print(left_out_in_words(self.counts), file=sys.stderr)

    def why_nothing_is_left(self) -> str:
        """To append to an error; empty where nothing was left out."""
        return f"; {left_out_in_words(self.counts)}; the first: {self._first}" if self.counts else ""


def left_out_in_words(counts: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
    return f"left out {sum(counts.values()):,} document(s) that are no text: {kinds}"


def text_of(value: Any, may_be_blank: bool = False) -> str:
    """The text of a document. Raises NotText."""
    if value is None:
        raise NotText("null", "the text is null")
    if isinstance(value, bytes):
        check_encoding(value)
        text = _decode(codecs.getincrementaldecoder("utf-8-sig")(), value, 1, final=True)
    elif isinstance(value, str):
        text = value.removeprefix("\ufeff")
        _check_surrogates(text)
    else:
        raise NotText("not a string", f"the text must be a string, got {type(value).__name__}")
    _check_characters(text, 1)
    if _is_blank(text) and not may_be_blank:
        raise NotText("empty", "the text is empty")
    return text


def check_blocks(blocks: Iterable[bytes]) -> None:
    """`text_of` for a document too long to hold, read once block by block."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line, is_blank = 1, True
    for number, block in enumerate(chain(blocks, [b""])):
        if number == 0:
            check_encoding(block)
        text = _decode(decoder, block, line, final=not block)
        _check_characters(text, line)
        line += text.count("\n")
        is_blank = is_blank and _is_blank(text)
    if is_blank:
        raise NotText("empty", "the text is empty")


def check_encoding(start: bytes) -> None:
    """Raises NotText where a file or document starts with the mark of another encoding."""
    for mark, name in _MARKS.items():
        if start.startswith(mark):
            raise NotText(f"in {name}", f"{name}, where UTF-8 is needed")


def _decode(decoder: codecs.IncrementalDecoder, block: bytes, line: int, *, final: bool) -> str:
    try:
        return decoder.decode(block, final=final)
    except UnicodeDecodeError as error:
        line += error.object.count(b"\n", 0, error.start)
        raise NotText("not UTF-8", f"not UTF-8 (byte 0x{error.object[error.start]:02x})", line) from error


def _check_characters(text: str, line: int) -> None:
    if "\0" in text:
        line += text.count("\n", 0, text.index("\0"))
        raise NotText("with NUL characters", "a NUL character in the text", line)


def _check_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = f"\\u{ord(text[error.start]):04x}"
        raise NotText("with lone surrogates", f"a lone surrogate {surrogate} in the text") from error


def _is_blank(text: str) -> bool:
    return not text or text.isspace()
