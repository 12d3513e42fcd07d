"""Against transformers: the same weights give the same logits."""

import pytest
import torch
from released_layout import load_released
from tiny import tiny_config, tiny_model, tokens
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

MODELS = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"qk_norm": True, "head_dim": 6}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"qk_norm": False, "tie_embeddings": False}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"qk_norm": False, "qkv_bias": True}),
}


def theirs(config_class, model_class, config):
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tie_embeddings,
        "attn_implementation": "eager",
    }
    if config_class is Qwen3Config:
        sizes["head_dim"] = config.head_dim
    model = model_class(config_class(**sizes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_logits(kind):
    config_class, model_class, sizes = MODELS[kind]
    config = tiny_config(norm_eps=1e-2, rope_theta=50.0, **sizes)  # where a wrong base or epsilon shows
    reference, ours = theirs(config_class, model_class, config), tiny_model("standard", config)
    load_released(ours, dict(reference.named_parameters()))
    input_ids = tokens(batch=2, length=13)
    with torch.no_grad():
        expected, logits = reference(input_ids).logits, ours(input_ids)
    assert expected.std() > 0.3
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
