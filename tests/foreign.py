"""Tiny checkpoints of each family, written by transformers itself."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": False}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
    "llama3": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3, "head_dim": 16}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None, "head_dim": 8}),
}
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 5,
    "bos_token_id": 4,
}


def make(family: str, **changes: Any) -> Any:
    """A model of transformers with random weights large enough that every term shows."""
    config_class, model_class, sizes = FAMILIES[family]
    config = config_class(**{**SIZES, **sizes, **changes}, attn_implementation="eager")
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    return model


def save(family: str, folder: Path, *, shard: str = "5GB", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Writes it as transformers does, in shards of at most `shard`; returns the model."""
    model = make(family, **changes).to(dtype)
    model.save_pretrained(folder, max_shard_size=shard)
    return model
