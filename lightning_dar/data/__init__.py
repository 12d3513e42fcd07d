"""Text -> token shards (litdata) -> windows -> batches."""

from lightning_dar.data.module import TextData
from lightning_dar.data.tokenizer import Tokenizer

__all__ = ["TextData", "Tokenizer"]
