"""Text -> token shards (litdata) -> windows -> batches."""

from typing import TYPE_CHECKING, Any

from lightning_dar.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lightning_dar.text.module import TextData

__all__ = ["TextData", "Tokenizer"]


def __getattr__(name: str) -> Any:
    """Lightning is imported with `TextData` only: whoever encodes text does without."""
    if name != "TextData":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lightning_dar.text.module import TextData

    return TextData
