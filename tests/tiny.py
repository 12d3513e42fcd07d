"""Models small enough to check by hand, with weights large enough that every term shows."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_dar.model import Transformer, TransformerConfig, build_transformer, resolve_config
from lightning_dar.residual import ResidualConfig

VOCAB = 31


def tiny_config(**sizes: Any) -> TransformerConfig:
    defaults = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "num_layers": 4,
        "num_heads": 4,
        "num_kv_heads": 2,
        "intermediate_size": 24,
    }
    return resolve_config(**{**defaults, **sizes})


def tiny_model(name: str = "standard", config: TransformerConfig | None = None, **options: Any) -> Transformer:
    return build_transformer(config or tiny_config(), ResidualConfig(name=name, options=options))


def scramble(model: Transformer) -> Transformer:
    """Random weights of order one: routing far from uniform, no parameter at a special value."""
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.ndim >= 2 else 0.5
            offset = 0.0 if parameter.ndim >= 2 else 1.0
            parameter.normal_(offset, spread)
        for name in ("query", "null_source"):
            if getattr(model.residual, name, None) is not None:
                getattr(model.residual, name).normal_()
    return model


def tokens(batch: int = 2, length: int = 7, vocab: int = VOCAB) -> Tensor:
    return torch.randint(vocab, (batch, length))


def gradients(model: Transformer, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter, zeros where it does not take part."""
    named = dict(model.named_parameters())
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, grads, strict=True))


def variant(name: str, **options: Any) -> Any:
    """A test parameter (name, options) with a readable id."""
    return pytest.param(name, options, id=" ".join([name, *(f"{k}={v}" for k, v in options.items())]))
