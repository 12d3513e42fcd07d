"""Attention of a routed model for transformers: masks, kernels and caches are those of transformers."""

from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import Cache, EncoderDecoderCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from lightning_dar.model.attention import Attention
from lightning_dar.model.config import TransformerConfig
from lightning_dar.ops.torch_private import opaque

MASK_ARGUMENTS = frozenset(signature(create_causal_mask).parameters)  # their names differ by version


class TransformersContext(NamedTuple):
    """What every sublayer of one forward shares."""

    cos: Tensor
    sin: Tensor
    mask: Any
    cache: Cache | None
    places: Tensor
    """[T], where in the cache these tokens go."""

    options: dict[str, Any]
    """Further keywords of the attention function."""

    inputs: dict[int, Tensor] | None = None
    """By layer, what its attention read [B, T, D], filled as the layers run; None where nobody asks."""

    weights: dict[int, Tensor] | None = None
    """By layer, its attention weights [B, H, T, S], likewise."""

    auxiliary: None = None


class TransformersAttention(Attention):
    """The same sublayer, computed by the function that `attn_implementation` names."""

    is_causal = True

    def __init__(self, config: TransformerConfig, *, layer: int = 0, **wired: Any):
        super().__init__(config, layer=layer, **wired)
        self.layer_idx, self.num_key_value_groups = layer, config.num_heads // config.num_kv_heads

    def compute(self, x: Tensor | tuple[Tensor, Tensor, Tensor], context: TransformersContext) -> Tensor:
        if context.inputs is not None:
            _keep(context.inputs, self, x if isinstance(x, Tensor) else x[0])
        return super().compute(x, context)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: TransformersContext) -> Tensor:
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        if context.cache is not None:
            k, v = _all_keys(context, self, k, v)
        name = self.config._attn_implementation  # `config` is set by the transformer, and is that of transformers
        function = eager_attention_forward if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
        scaling = self.head_dim**-0.5
        out, weights = function(self, q, k, v, context.mask, dropout=0.0, scaling=scaling, **context.options)
        if context.weights is not None:
            _keep(context.weights, self, weights)
        return out


# What depends on the number of the layer is opaque to torch.compile, so that all layers share their compiled code.


@opaque
def _keep(kept: dict[int, Tensor], attention: Attention, tensor: Tensor) -> None:
    kept[attention.layer] = tensor


@opaque
def _all_keys(context: TransformersContext, attention: Attention, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [B, K, S, head_dim] of all tokens so far, these ones added to the cache."""
    return context.cache.update(k, v, attention.layer, {"cache_position": context.places})


def causal_mask(
    config: Any, embeddings: Tensor, mask: Any, positions: Tensor, cache: Cache | None, places: Tensor
) -> Any:
    """The mask that the attention function takes, from none, [B, tokens so far], or one that is ready [B, 1, T, S].

    Raises:
        ValueError: a ready mask that is neither bool nor float, or any other shape.
    """
    if isinstance(mask, dict):  # by kind of layer, as `generate` prepares it; all of ours are of one kind
        mask = mask["full_attention"]
    if isinstance(mask, Tensor) and mask.ndim == 4:
        return _ready(mask, embeddings.dtype, config._attn_implementation)
    if isinstance(mask, Tensor) and mask.ndim != 2:
        raise ValueError(f"attention_mask has shape {list(mask.shape)}: it must be [B, S] or [B, 1, T, S]")
    given = {
        "config": config,
        "inputs_embeds": embeddings,
        "input_embeds": embeddings,
        "attention_mask": mask,
        "cache": cache,
        "past_key_values": cache,
        "cache_position": places,
        "position_ids": positions,
    }
    return create_causal_mask(**{name: value for name, value in given.items() if name in MASK_ARGUMENTS})


def _ready(mask: Tensor, dtype: torch.dtype, implementation: str) -> Tensor:
    if mask.dtype == torch.bool:
        if implementation != "eager":
            return mask
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
    if not mask.is_floating_point():
        raise ValueError(
            f"attention_mask [B, 1, T, S] is {mask.dtype}: it must be bool, true where seen, or float, added to scores"
        )
    return mask.to(dtype)


def checked_cache(cache: Any) -> Cache | None:
    """Raises TypeError for what is no cache of transformers, ValueError for one that drops tokens."""
    if cache is None:
        return None
    if not isinstance(cache, Cache) or isinstance(cache, EncoderDecoderCache):
        raise TypeError(
            f"past_key_values is a {type(cache).__name__}: this model takes a decoder's cache of transformers, such as "
            "DynamicCache or StaticCache"
        )
    if any(getattr(cache, "is_sliding", [])):
        raise ValueError(
            f"past_key_values is a {type(cache).__name__} of sliding windows: this model attends to all earlier tokens"
        )
    return cache
