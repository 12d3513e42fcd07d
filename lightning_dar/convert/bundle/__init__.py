"""Several modules as the text of one, for the folders that transformers opens."""

from lightning_dar.convert.bundle.modules import Variable
from lightning_dar.convert.bundle.naming import in_order
from lightning_dar.convert.bundle.text import Bundle, bundle

__all__ = ["Bundle", "Variable", "bundle", "in_order"]
