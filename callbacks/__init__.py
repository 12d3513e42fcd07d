"""The callbacks of `lightning_dar.callbacks` under the short name that configs use: `class_path: callbacks.NAME`."""

from lightning_dar.callbacks import *  # noqa: F403
from lightning_dar.callbacks import __all__  # noqa: F401
