"""A routed model for transformers, with generation and its cache. `hf_export.py` copies this file, and the files that
it imports, into the folders it writes; the strategy imported here is exchanged for the model's own."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from lightning_dar.checkpoint.hf_configuration import RoutedConfig
from lightning_dar.model.config import TransformerConfig
from lightning_dar.model.transformer import Transformer
from lightning_dar.residual.base import Shape
from lightning_dar.residual.standard import Standard as Strategy

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"  # new and old name


class TransformersCache:
    """transformers' cache, seen as ours: its heads come before its tokens."""

    def __init__(self, cache: Cache):
        self.cache, self.length = cache, cache.get_seq_length()

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.cache.update(k.transpose(1, 2), v.transpose(1, 2), layer)
        return keys.transpose(1, 2), values.transpose(1, 2)


class RoutedForCausalLM(PreTrainedModel, GenerationMixin):
    """Token ids -> logits of the next token."""

    config_class = RoutedConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _no_split_modules = ["Attention", "MLP"]  # noqa: RUF012

    def __init__(self, config: RoutedConfig):
        super().__init__(config)
        sizes = TransformerConfig(**{**config.lightning_dar["architecture"], "attention_backend": "sdpa"})
        shape = Shape(num_layers=sizes.num_layers, hidden_size=sizes.hidden_size, eps=sizes.norm_eps)
        self.model = Transformer(sizes, Strategy(shape, **config.lightning_dar["residual"]["options"]))
        self.model.init_weights()
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """The transformer initialises itself."""

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, T, V], of the last `logits_to_keep` positions where given, and the loss with `labels` [B, T].

        `attention_mask` [B, tokens so far] is 0 where padded, on either side. Positions count padding too: rotary
        embeddings see differences only.
        """
        if use_cache is None:
            use_cache = not self.training and labels is None
        cache = past_key_values if cache is None else cache
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        padded = attention_mask is not None and not torch.all(attention_mask == 1)
        logits = self.model(
            input_ids,
            attention_mask.long() if padded else None,  # padding is a document of its own
            head=lambda hidden, weight: F.linear(hidden[:, -logits_to_keep:], weight),
            cache=None if cache is None else TransformersCache(cache),
        )
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: cache})
