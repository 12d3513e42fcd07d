"""What a routed model's `config.json` says twice, for transformers and in its description; its parameters' names."""

from collections.abc import Iterator, Mapping
from typing import Any

SIZES = {  # name for transformers -> name in the description's architecture
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "rms_norm_eps": "norm_eps",
    "initializer_range": "init_std",
    "tie_word_embeddings": "tie_embeddings",
}
ROPE_SCALING = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_positions",
}
FIXED = {  # what the model cannot be told: the values that say what it does
    "hidden_act": (None, "silu", "swish"),
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "attention_dropout": (None, 0, 0.0),
    "sliding_window": (None,),
    "use_sliding_window": (None, False),
    "partial_rotary_factor": (None, 1, 1.0),
    "is_causal": (None, True),
}


def refuse_contradictions(hf: Mapping[str, Any], architecture: Mapping[str, Any]) -> None:
    """Raises ValueError for every field of `config.json` that says something else than the model's description."""
    problems = [*_size_problems(hf, architecture), *_rope_problems(hf, architecture)]
    problems += [f"{name}={hf[name]!r} is not what it does" for name in FIXED if hf.get(name) not in FIXED[name]]
    if problems:
        raise ValueError(f"the model's config contradicts its description: {'; '.join(problems)}")


def _size_problems(hf: Mapping[str, Any], architecture: Mapping[str, Any]) -> Iterator[str]:
    for name, ours in SIZES.items():
        if name in hf and ours in architecture and hf[name] != architecture[ours]:
            yield f"{name}={hf[name]!r}, but lightning_dar.architecture.{ours}={architecture[ours]!r}"


def _rope_problems(hf: Mapping[str, Any], architecture: Mapping[str, Any]) -> Iterator[str]:
    scaling = architecture.get("rope_scaling") or {}
    kind = "llama3" if scaling else "default"
    right = {"rope_theta": architecture.get("rope_theta"), "rope_type": kind, "type": kind}
    right |= {name: scaling[ours] for name, ours in ROPE_SCALING.items() if ours in scaling}
    given = {"rope_theta": {"rope_theta": hf.get("rope_theta")}}
    given |= {place: hf.get(place) or {} for place in ("rope_parameters", "rope_scaling")}
    for place, fields in given.items():
        if not isinstance(fields, Mapping):
            yield f"{place}={fields!r} is no table"
            continue
        for name, value in fields.items():
            if value is not None and (name not in right or value != right[name]):
                yield f"{place}: {name}={value!r}, but lightning_dar.architecture has {right.get(name)!r}"


def hf_name(name: str) -> str:
    """A parameter's name in the folder for transformers: embedding and head are called as its own models call them,
    and each routing parameter is a module, which adapters can name."""
    match name.split("."):
        case ["embed", last]:
            return f"model.embed_tokens.{last}"
        case ["head", last]:
            return f"lm_head.{last}"
        case ["residual", parameter]:
            return f"model.residual.routing_parameters.{parameter}.weight"
    return f"model.{name}"


def native_name(name: str) -> str:
    """The reverse of `hf_name`; the names of older folders, `model.` before ours, are read too."""
    match name.split("."):
        case ["model", "embed_tokens", last]:
            return f"embed.{last}"
        case ["lm_head", last]:
            return f"head.{last}"
        case ["model", "residual", "routing_parameters", parameter, "weight"]:
            return f"residual.{parameter}"
    return name.removeprefix("model.")
