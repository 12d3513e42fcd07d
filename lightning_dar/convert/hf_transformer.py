"""A routed model for transformers without its head: attention, caches, and parameters by the names that people try."""

from collections.abc import Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward
from transformers.utils import TransformersKwargs

from lightning_dar.convert.hf_configuration import RoutedConfig
from lightning_dar.model.attention import Attention
from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.layer import Layer
from lightning_dar.model.mlp import MLP
from lightning_dar.model.rope import rope_angles
from lightning_dar.model.transformer import Transformer
from lightning_dar.ops.torch_private import opaque
from lightning_dar.residual.base import Shape
from lightning_dar.residual.standard import Standard as Strategy

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


WRAPPERS = ("base_layer", "original_module", "modules_to_save")  # what peft puts between a module and its parameters


class RoutingParameter(nn.Module):
    """One parameter of a strategy; calling it gives the tensor."""

    def __init__(self, weight: nn.Parameter):
        super().__init__()
        self.weight = weight

    def forward(self, _: None = None) -> Tensor:
        return self.weight


class AddressableStrategy(Strategy):
    """The strategy, with each of its own parameters, such as `query`, in a module `routing_parameters.query`.

    An adapter wraps modules and has no effect on a bare parameter; what the strategy reads here goes through the
    module, so through whatever wraps it.
    """

    def __init__(self, shape: Shape, **options: Any):
        super().__init__(shape, **options)
        parameters = dict(self.named_parameters(recurse=False))
        for name in parameters:
            delattr(self, name)
        modules = {name: RoutingParameter(weight) for name, weight in parameters.items()}
        self.routing_parameters = nn.ModuleDict(modules)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules", {}).get("routing_parameters", ())
        return modules[name](None) if name in modules else super().__getattr__(name)

    @torch.no_grad()
    def reset_module(self, module: nn.Module) -> None:
        """Initialises the parameters of one module of the strategy; it can only do all at once, so others are kept."""
        own = {id(parameter) for parameter in module.parameters(recurse=False)}
        kept = [(parameter, parameter.clone()) for parameter in self.parameters() if id(parameter) not in own]
        self.reset_parameters()
        for parameter, value in kept:
            parameter.copy_(value)


def refuse_unknown_targets(model: nn.Module, configs: Mapping[str, Any]) -> None:
    """Raises ValueError where a peft configuration names a module or parameter that the model does not have; peft
    itself is silent as long as one other name fits."""
    modules = {_plain(name) for name, _ in model.named_modules(remove_duplicate=False)}
    parameters = {_plain(name) for name, _ in model.named_parameters(remove_duplicate=False)}
    for config in configs.values():
        for option, present in (
            ("target_modules", modules),
            ("modules_to_save", modules),
            ("target_parameters", parameters),
        ):
            names = getattr(config, option, None)
            if isinstance(names, str):  # a pattern, of which peft says whether anything fits
                continue
            for name in names or ():
                if not any(f".{known}".endswith(f".{name}") for known in present):
                    raise ValueError(_unknown(option, name, present))


def _unknown(option: str, name: str, present: set[str]) -> str:
    """The message: the name, and the nearest, or all that there are."""
    length = 2 if option == "target_parameters" else 1
    known = sorted({".".join(path.split(".")[-length:]) for path in present if not path.split(".")[-1].isdigit()})
    known = [path for path in known if path and "lora_" not in path]
    near = get_close_matches(name, known, n=1) or [path for path in known if path.split(".")[0] == name.split(".")[-1]]
    hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(known)}"
    return f"{option}: this model has nothing named '{name}'; {hint}"


def _plain(name: str) -> str:
    """The name before peft wrapped anything."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


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
    """The keywords that were given. Raises TypeError for a name that nothing here listens to."""
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
