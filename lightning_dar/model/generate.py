"""Sampling text from a model."""

from collections.abc import Iterator

import torch
from torch import Tensor

from lightning_dar.model.layer import KVCache
from lightning_dar.model.transformer import Transformer


def generate(model: Transformer, input_ids: Tensor, max_new_tokens: int, **options) -> Tensor:
    """Continues a prompt: int64 [1, T] -> [1, T + max_new_tokens]. Options as for `generate_tokens`."""
    return torch.cat([input_ids, *generate_tokens(model, input_ids, max_new_tokens, **options)], dim=1)


@torch.no_grad()
def generate_tokens(
    model: Transformer,
    input_ids: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    context: int | None = None,
    use_cache: bool = True,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Yields the tokens that continue a prompt, each as soon as it is known.

    Args:
        model: the model.
        input_ids: int64 [1, T], the prompt.
        max_new_tokens: tokens to add.
        temperature: 0 takes the most likely token.
        top_k: sample among the k most likely tokens only; default: all.
        top_p: sample among the most likely tokens that together reach this probability only; default: all.
        context: newest tokens that the model sees; default: all. Positions then shift with every token, so that
            each step processes the whole context anew.
        use_cache: keep keys and values, so that each step processes one token.
        generator: source of randomness, on the CPU; default: the global one.

    Yields:
        int64 [1, 1].
    """
    cache = KVCache() if use_cache and context is None else None
    new = input_ids
    for _ in range(max_new_tokens):
        seen = new if cache is not None else input_ids if context is None else input_ids[:, -context:]
        logits = model(seen, head=lambda hidden, weight: hidden[:, -1] @ weight.T, cache=cache)
        new = _pick(logits, temperature, top_k, top_p, generator)
        if cache is None:
            input_ids = torch.cat([input_ids, new], dim=1)
        yield new


def _pick(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator | None
) -> Tensor:
    """[1, V] -> [1, 1]; drawn on the CPU, so that a seed gives the same text on every device."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    probabilities = (logits.float() / temperature).softmax(-1).cpu()
    if top_k is not None:
        cut = probabilities.topk(min(top_k, probabilities.shape[-1])).values[:, -1:]
        probabilities = probabilities.masked_fill(probabilities < cut, 0)
    if top_p is not None:
        ordered = probabilities.sort(descending=True).values / probabilities.sum()
        within = ordered.cumsum(-1) - ordered < top_p  # the token that crosses the line still counts
        cut = ordered.masked_fill(~within, torch.inf).amin() * probabilities.sum()
        probabilities = probabilities.masked_fill(probabilities < cut * (1 - 1e-6), 0)
    return torch.multinomial(probabilities, 1, generator=generator).to(logits.device)
