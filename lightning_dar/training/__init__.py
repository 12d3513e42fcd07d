"""Training under Lightning: the module, its loss, metrics, optimizer and schedule."""

from lightning_dar.training.module import LanguageModel
from lightning_dar.training.optimizer import OptimizerConfig
from lightning_dar.training.strategies import FSDP, FSDP2

__all__ = ["FSDP", "FSDP2", "LanguageModel", "OptimizerConfig"]
