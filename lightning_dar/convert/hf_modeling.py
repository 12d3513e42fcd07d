"""A routed model for transformers: Qwen3ForCausalLM's interface around the transformer with its residual strategy.

`hf_export.py` makes one file of this one and all that it imports, for the folders that it writes; there the strategy
imported in `hf_transformer.py` is exchanged for the model's own.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple, logging

from lightning_dar.convert.hf_configuration import RoutedConfig, check_made_for
from lightning_dar.convert.hf_transformer import CACHE, RoutedTransformer, known_keywords, refuse_unknown_targets

logger = logging.get_logger(__name__)


class RoutedForCausalLM(PreTrainedModel, GenerationMixin):
    """Token ids -> logits of the next token."""

    config_class = RoutedConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    _no_split_modules = ["RoutedTransformer"]  # noqa: RUF012  reads go across all layers
    _skip_keys_device_placement = ["past_key_values", "cache"]  # noqa: RUF012
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: RoutedConfig):
        super().__init__(config)
        check_made_for(config)
        self.model = RoutedTransformer(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if not list(module.parameters(recurse=False)):
            return
        if any(module is part for part in self.model.residual.modules()):
            self.model.residual.reset_module(module)
        else:
            name = next((name for name, other in self.model.named_modules() if other is module), "")
            self.model.init_module(name, module)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "peft_config":  # peft sets it once its adapter is in place
            refuse_unknown_targets(self, value)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embed_tokens = value

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    def get_decoder(self) -> nn.Module:
        return self.model

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Any = None, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2 and not torch.all(attention_mask[:, -1]):
            logger.warning_once("a prompt is padded on the right, and is continued after its padding: pad on the left")
        kwargs |= {"attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        return super().prepare_inputs_for_generation(input_ids, **kwargs)

    def _valid_auto_compile_criteria(self, model_kwargs: dict[str, Any], generation_config: Any) -> bool:
        """Whether `generate` compiles for a static cache: where it is asked to, since with eager reads in between there
        is little to win and much to capture."""
        asked = generation_config.compile_config is not None
        return asked and super()._valid_auto_compile_criteria(model_kwargs, generation_config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: Cache | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | int | list[int] | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, T, V] and, with `labels`, the loss; every argument means what it means to Qwen3ForCausalLM.

        Args:
            input_ids: int [B, T].
            attention_mask: [B, tokens so far], 0 where padded, or one that is ready, [B, 1, T, S].
            position_ids: int [B, T]. Without a mask, positions that start again keep packed documents apart.
            past_key_values: the former name of `cache`.
            inputs_embeds: [B, T, D], in place of `input_ids`.
            labels: int [B, T], -100 where ignored.
            use_cache: whether to return a cache; default: the config's.
            logits_to_keep: the last so many positions, or the positions themselves.
            cache: the tokens before these; any kind that keeps all of them.
            output_attentions: attention weights [B, H, T, S] a layer; with attn_implementation "eager" only.
            output_hidden_states: what the attention of each layer reads, then what the head reads, [B, T, D] each.
            **kwargs: those that transformers passes to its attention and loss functions (`num_items_in_batch`,
                `shift_labels`, ...), and `return_dict`.

        Raises:
            TypeError: any other keyword.
        """
        kwargs = known_keywords(kwargs)
        outputs = self.model(
            input_ids,
            attention_mask,
            position_ids,
            past_key_values,
            inputs_embeds,
            use_cache,
            cache,
            output_attentions,
            output_hidden_states,
            True,
            **kwargs,
        )
        logits = self.lm_head(_kept(outputs.last_hidden_state, logits_to_keep))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE: getattr(outputs, CACHE)},
        )


def _kept(hidden: Tensor, positions: int | Tensor) -> Tensor:
    """[B, T, D] at the last so many positions, at those of a tensor [n] or [B, n], or where a bool [B, T] is true."""
    if not isinstance(positions, Tensor):
        return hidden[:, -positions:]
    if positions.ndim == 2:
        return hidden[positions] if positions.dtype == torch.bool else hidden.take_along_dim(positions[..., None], 1)
    return hidden[:, positions]
