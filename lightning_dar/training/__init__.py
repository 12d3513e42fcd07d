"""Training under Lightning: the module, its loss, metrics, optimizer and schedule."""

from lightning_dar.training.module import LanguageModel
from lightning_dar.training.optimizer import OptimizerConfig

__all__ = ["LanguageModel", "OptimizerConfig"]
