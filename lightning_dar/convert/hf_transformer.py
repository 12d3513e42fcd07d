"""The transformer of a routed model without its head, called as the base models of transformers are."""

from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import TransformersKwargs

from lightning_dar.convert.hf_attention import TransformersAttention, TransformersContext, causal_mask, checked_cache
from lightning_dar.convert.hf_configuration import RoutedConfig
from lightning_dar.convert.hf_routing import AddressableStrategy
from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.layer import Layer
from lightning_dar.model.mlp import MLP
from lightning_dar.model.rope import rope_angles
from lightning_dar.model.transformer import Transformer
from lightning_dar.residual.base import Shape

CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"  # new and old name
KEYWORDS = frozenset(TransformersKwargs.__annotations__) | {
    "shift_labels",
    "ignore_index",
    "is_causal",
    "cache_position",
}


class RoutedTransformer(Transformer):
    """The transformer without its head, called as the base models of transformers are."""

    attention = TransformersAttention
    mlp = MLP

    def __init__(self, config: RoutedConfig):
        sizes = {**config.checked_architecture(), "attention_backend": "sdpa", "tie_embeddings": True}
        sizes = TransformerConfig(**sizes)
        shape = Shape(num_layers=sizes.num_layers, hidden_size=sizes.hidden_size, eps=sizes.norm_eps)
        super().__init__(sizes, AddressableStrategy(shape, **config.lightning_dar["residual"]["options"]))
        self.embed_tokens = self.embed
        del self.embed
        self.hf_config, self.gradient_checkpointing = config, False
        for layer in self.layers:
            layer.attention.config = config

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | int | list[int] | None = None,
        return_dict: bool | None = None,
        **keywords: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """Hidden states [B, T, D] after the final norm; arguments as for `RoutedForCausalLM`."""
        keywords = known_keywords(keywords)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        config = self.hf_config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        if output_attentions and config._attn_implementation != "eager":
            raise ValueError(
                f"output_attentions: attn_implementation={config._attn_implementation!r} holds no attention weights; "
                'load the model with attn_implementation="eager"'
            )
        embeddings = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache, use_cache = self._cache(cache, past_key_values, use_cache)
        wanted = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        context = self._context(embeddings, attention_mask, position_ids, cache, keywords)
        inputs = None if wanted is False else {}
        context = context._replace(inputs=inputs, weights={} if output_attentions else None)
        state = self.residual.start(embeddings)
        for layer in self.layers:
            state = self._run(layer, state, context)
        hidden = self.norm(self.residual.finish(state))
        output = BaseModelOutputWithPast(
            last_hidden_state=hidden,
            hidden_states=None if inputs is None else _chosen([*inputs.values(), hidden], wanted),
            attentions=tuple(context.weights.values()) if output_attentions else None,
            **{CACHE: cache if use_cache else None},
        )
        return_dict = config.return_dict if return_dict is None else return_dict
        return output if return_dict else output.to_tuple()

    def _cache(self, cache: Any, past: Any, use_cache: bool | None) -> tuple[Cache | None, bool]:
        """The cache of this call, and whether it is handed back."""
        if cache is not None and past is not None:
            raise ValueError("give one of cache and past_key_values: they are the new and the old name of one argument")
        cache = checked_cache(past if cache is None else cache)
        use_cache = self.hf_config.use_cache if use_cache is None else use_cache
        if self._checkpoints():
            if cache is not None:
                raise ValueError("past_key_values: a cache cannot be used in training with gradient checkpointing")
            return None, False
        return DynamicCache(config=self.hf_config) if use_cache and cache is None else cache, use_cache

    def _context(
        self, embeddings: Tensor, mask: Any, positions: Tensor | None, cache: Cache | None, keywords: dict[str, Any]
    ) -> TransformersContext:
        places = keywords.pop("cache_position", None)
        if places is None:
            seen = 0 if cache is None else cache.get_seq_length()
            places = torch.arange(embeddings.shape[1], device=embeddings.device) + seen
        positions = places[None] if positions is None else positions
        sizes = self.config
        cos, sin = rope_angles(positions, sizes.head_dim, sizes.rope_theta, scaling=sizes.rope_scaling)
        mask = causal_mask(self.hf_config, embeddings, mask, positions, cache, places)
        return TransformersContext(cos, sin, mask, cache, places, {**keywords, "position_ids": positions})

    def _run(self, layer: Layer, state: Any, context: TransformersContext) -> Any:
        if not self._checkpoints():
            return layer(state, self.residual, context)
        # Not the reentrant kind, which sees tensors among the arguments only, and not those inside of a state.
        again = self._gradient_checkpointing_func
        return again(layer, state, self.residual, context, use_reentrant=False)

    def _checkpoints(self) -> bool:
        return self.gradient_checkpointing and self.training and torch.is_grad_enabled()


def known_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Those that were given. Raises TypeError for a name that nothing here listens to."""
    given = {name: value for name, value in keywords.items() if value is not None}
    if "token_type_ids" in given and not given["token_type_ids"].any():  # one text, as some tokenizers say
        del given["token_type_ids"]
    unknown = [name for name in given if name not in KEYWORDS]
    if unknown:
        names = [*RoutedTransformer.forward.__annotations__, "labels", "logits_to_keep", *KEYWORDS]
        near = get_close_matches(unknown[0], names, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise TypeError(f"RoutedForCausalLM.forward() got an unexpected keyword argument '{unknown[0]}'{hint}")
    if not given.pop("is_causal", True):
        raise ValueError("is_causal=False: this model's attention is causal")
    if given.pop("output_router_logits", False):
        raise ValueError("output_router_logits: this model has no router; its routing is over depth")
    return given


def _chosen(states: list[Tensor], wanted: bool | int | list[int]) -> tuple[Tensor | None, ...]:
    """All, or those of the given numbers in their places."""
    if wanted is True:
        return tuple(states)
    numbers = [wanted] if isinstance(wanted, int) else wanted
    return tuple(
        state if number in numbers or number - len(states) in numbers else None for number, state in enumerate(states)
    )
