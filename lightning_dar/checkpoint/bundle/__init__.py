"""Several modules as the text of one, for the folders that transformers opens."""

from lightning_dar.checkpoint.bundle.modules import Variable
from lightning_dar.checkpoint.bundle.order import in_order
from lightning_dar.checkpoint.bundle.text import Bundle, bundle

__all__ = ["Bundle", "Variable", "bundle", "in_order"]
