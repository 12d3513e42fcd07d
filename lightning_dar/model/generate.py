"""Sampling text from a model."""

import torch
from torch import Tensor

from lightning_dar.model.transformer import Transformer


@torch.no_grad()
def generate(
    model: Transformer,
    input_ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    context: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continues a prompt, a token at a time.

    Args:
        model: the model.
        input_ids: int64 [1, T], the prompt.
        max_new_tokens: tokens to add.
        temperature: 0 takes the most likely token.
        top_k: sample among the k most likely tokens only; default: all.
        context: newest tokens that the model sees; default: all.
        generator: source of randomness, on the CPU; default: the global one.

    Returns:
        int64 [1, T + max_new_tokens].
    """
    for _ in range(max_new_tokens):
        seen = input_ids if context is None else input_ids[:, -context:]
        logits = model(seen, head=lambda hidden, weight: hidden[:, -1] @ weight.T)
        input_ids = torch.cat([input_ids, _pick(logits, temperature, top_k, generator)], dim=1)
    return input_ids


def _pick(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """[1, V] -> [1, 1]; drawn on the CPU, so that a seed gives the same text on every device."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits.float() / temperature
    if top_k is not None:
        cut = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < cut, -torch.inf)
    drawn = torch.multinomial(logits.softmax(-1).cpu(), 1, generator=generator)
    return drawn.to(logits.device)
