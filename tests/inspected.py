"""Tiny checkpoints to inspect: in memory, or as a file."""

from pathlib import Path
from typing import Any

import torch
from tiny import scramble, tiny_config, tiny_model

from lightning_dar.checkpoint.description import DESCRIPTION_KEY, describe
from lightning_dar.checkpoint.load import Checkpoint
from lightning_dar.checkpoint.tensors import InMemory
from lightning_dar.residual import ResidualConfig
from lightning_dar.text.tokenizer import BYTES_JSON

BYTES_VOCAB = 257
PLUGIN = '''
"""Reads the mean of all outputs so far, weighed by how recent they are."""
import torch
from lightning_dar import Residual, register_residual
from lightning_dar.residual.base import DepthRouting


@register_residual("recent")
class Recent(Residual):
    def start(self, embeddings):
        return (embeddings,)

    def read(self, state, site):
        weights = torch.arange(1.0, len(state) + 1).softmax(0)
        return sum(weight * source for weight, source in zip(weights, state))

    def write(self, state, y, site):
        return (*state, y)

    def finish(self, state):
        return sum(state)
'''
PLUGIN_WITH_ROUTING = f"""{PLUGIN}
    def routing(self, state, site):
        if site == self.shape.num_sites:
            return None
        weights = torch.arange(1.0, len(state) + 1).softmax(0)
        return DepthRouting(weights.expand(*state[0].shape[:-1], -1), state)
"""


def checkpoint_of(
    name: str, tokenizer: str | None = BYTES_JSON, vocab: int = BYTES_VOCAB, **options: Any
) -> Checkpoint:
    """Random weights under strategy `name`, opened."""
    config = tiny_config(vocab_size=vocab)
    model = scramble(tiny_model(name, config, **options))
    description = describe(config, model.residual, ResidualConfig(name=name, options=options), tokenizer)
    return Checkpoint(path=Path(f"{name}.ckpt"), description=description, tensors=InMemory(model.state_dict()))


def save_checkpoint(path: Path, name: str, content: dict[str, Any] | None = None, **settings: Any) -> Path:
    """The same, as Lightning's single file, with `content` beside weights and description."""
    made = checkpoint_of(name, **settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {f"model.{key}": made.tensors.read(key) for key in made.tensors.infos}
    torch.save({"state_dict": state, DESCRIPTION_KEY: made.description, **(content or {})}, path)
    return path
