"""Tensors that a checkpoint stores beside those that count: each is compared with what stands for it before it is left
out."""

import re
from dataclasses import replace

import torch
from torch import Tensor

from lightning_dar.checkpoint.tensors import Tensors
from lightning_dar.errors import DataError
from lightning_dar.model import TransformerConfig
from lightning_dar.model.rope import rope_frequencies

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FREQUENCIES = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")  # old checkpoints keep these
ROUNDINGS = 4  # of the dtype that the frequencies are stored in


def untied_where_different(config: TransformerConfig, theirs: Tensors) -> tuple[TransformerConfig, tuple[str, ...]]:
    """The architecture as the weights have it, and what has to be said about it.

    A head stored beside an embedding that `config.json` ties it to is read and compared: where they differ, the head
    counts, as in transformers 5.
    """
    if not config.tie_embeddings or HEAD not in theirs.infos or EMBEDDING not in theirs.infos:
        return config, ()
    if theirs.infos[HEAD] == theirs.infos[EMBEDDING] and torch.equal(theirs.read(HEAD), theirs.read(EMBEDDING)):
        return config, (f"{HEAD} is {EMBEDDING} to the last bit: stored once",)
    note = f"{HEAD} differs from {EMBEDDING}, though config.json ties them: both are kept, tie_word_embeddings is false"
    return replace(config, tie_embeddings=False), (note,)


def left_out(theirs: Tensors, config: TransformerConfig) -> set[str]:
    """The names that need no place in a model of this architecture.

    Raises:
        DataError: rotary frequencies that are not those of `config.json`.
    """
    names = {name for name in theirs.infos if FREQUENCIES.fullmatch(name)}
    expected = rope_frequencies(config.head_dim, config.rope_theta, torch.device("cpu"), config.rope_scaling)
    for name in sorted(names):
        if not _is_rounded(theirs, name, expected):
            raise DataError(
                f"{name} is not what rope_theta={config.rope_theta:g} in config.json says; correct the one or remove "
                "the other"
            )
    return names | ({HEAD} if config.tie_embeddings and EMBEDDING in theirs.infos else set())


def _is_rounded(theirs: Tensors, name: str, expected: Tensor) -> bool:
    """Whether the stored values are `expected`, rounded to the dtype that they are stored in."""
    info = theirs.infos[name]
    if info.shape != tuple(expected.shape):
        return False
    precision = torch.finfo(info.dtype)
    found = theirs.read(name).to(expected.dtype)
    return torch.allclose(
        found, expected, rtol=ROUNDINGS * precision.eps, atol=ROUNDINGS * precision.smallest_normal * precision.eps
    )
