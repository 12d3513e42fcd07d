"""A transformers `config.json` <-> our settings; what our model cannot compute is refused by name."""

from collections.abc import Mapping
from typing import Any

from lightning_dar.checkpoint.families import FAMILIES
from lightning_dar.errors import DataError, UsageError
from lightning_dar.model import RopeScaling, TransformerConfig
from lightning_dar.residual import ResidualConfig

LIMITS = {  # far above every real model; a config beyond them is damaged or hostile
    "vocab_size": 2**24,
    "hidden_size": 2**17,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**13,
    "num_key_value_heads": 2**13,
    "head_dim": 2**13,
    "intermediate_size": 2**20,
}
RELEASED_MODES = {  # mode -> strategy and options; num_blocks is added where the strategy takes it
    "block": ("attnres", {"granularity": "block"}),
    "full": ("attnres", {"granularity": "sublayer"}),
    "delta": ("delta-sublayer", {}),
    "delta_block": ("delta-block", {"block_delta": "released"}),
}
RELEASED_GATES = {"bias": "none", "learnable_alpha": "alpha"}
KEPT = ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
DEFAULT_MAX_POSITIONS = 32_768


def read_config(hf: Mapping[str, Any]) -> tuple[TransformerConfig, ResidualConfig]:
    """The architecture and strategy that a `config.json` describes.

    Raises:
        DataError: another family, a feature that our model does not have, or sizes that cannot be.
    """
    family = hf.get("model_type")
    if family not in FAMILIES:
        mixture = " (a mixture of experts)" if "moe" in str(family) or family == "mixtral" else ""
        raise DataError(f"config.json: model_type {family!r}{mixture}; convertible are {', '.join(FAMILIES)}")
    _refuse_features(hf, family)
    heads = _size(hf, "num_attention_heads")
    hidden = _size(hf, "hidden_size")
    try:
        config = TransformerConfig(
            vocab_size=_size(hf, "vocab_size"),
            hidden_size=hidden,
            num_layers=_size(hf, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_size(hf, "num_key_value_heads", {"mistral": 8, "llama": heads}.get(family, 32)),
            head_dim=_size(hf, "head_dim", 128 if family == "qwen3" else hidden // heads),
            intermediate_size=_size(hf, "intermediate_size"),
            norm_eps=_positive(hf, "rms_norm_eps", 1e-6),
            rope_theta=_positive({**hf, **_rope(hf)}, "rope_theta", 10_000.0),
            rope_scaling=_rope_scaling(hf),
            qk_norm=FAMILIES[family].qk_norm,
            qkv_bias=FAMILIES[family].qkv_bias,
            tie_embeddings=bool(hf.get("tie_word_embeddings", False)),
        )
        return config, _residual(hf) if family == "qwen3_attnres" else ResidualConfig(name="standard")
    except UsageError as error:
        raise DataError(f"config.json: {error}") from error


def write_config(config: TransformerConfig, origin: Mapping[str, Any] | None, seq_len: int | None) -> dict[str, Any]:
    """The `config.json` of a standard network: Qwen3, Qwen2 or Llama, whichever has its features.

    Args:
        config: the architecture.
        origin: the `config.json` that the model came from; what it says beyond the architecture is kept.
        seq_len: tokens a window in training; the number of positions where no origin tells it.

    Raises:
        DataError: features that no family has together.
    """
    family = family_of(config, origin)
    if origin is not None and origin["model_type"] == family and read_config(origin)[0] == config:
        return dict(origin)
    fields = {
        "model_type": family,
        "architectures": [FAMILIES[family].architecture],
        **size_fields(config),
        "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.norm_eps,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_act": "silu",
        "max_position_embeddings": seq_len or DEFAULT_MAX_POSITIONS,
        **rope_fields(config),
        **({"sliding_window": None} if family == "mistral" else {}),
    }
    return fields | kept_fields(origin)


def kept_fields(origin: Mapping[str, Any] | None) -> dict[str, Any]:
    """What our settings do not say, and whoever uses the folder wants to know."""
    return {name: origin[name] for name in KEPT if origin is not None and name in origin}


def size_fields(config: TransformerConfig) -> dict[str, Any]:
    """The sizes that transformers' cache and heads go by."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
    }


def rope_fields(config: TransformerConfig) -> dict[str, Any]:
    """The rotary embeddings as transformers writes them, and `rope_theta` for readers before version 5."""
    scaling = config.rope_scaling
    if scaling is None:
        return {
            "rope_theta": config.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        }
    llama3 = {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_positions,
    }
    return {"rope_theta": config.rope_theta, "rope_parameters": {**llama3, "rope_theta": config.rope_theta}}


def family_of(config: TransformerConfig, origin: Mapping[str, Any] | None = None) -> str:
    """The family whose features the architecture has; that of the origin where it still fits. Raises DataError."""
    fitting = [
        name
        for name, family in FAMILIES.items()
        if family.architecture and (family.qk_norm, family.qkv_bias) == (config.qk_norm, config.qkv_bias)
    ]
    if not fitting:
        raise DataError(
            f"none of {', '.join(FAMILIES)} has both model.qk_norm and model.qkv_bias, so this model cannot become a "
            "plain folder; --format lightning keeps it"
        )
    kept = origin["model_type"] if origin is not None and origin["model_type"] in fitting else None
    return kept or fitting[0]


def _refuse_features(hf: Mapping[str, Any], family: str) -> None:
    for name in ("quantization_config", "compression_config"):
        if hf.get(name):
            raise DataError(f"config.json: {name}: quantised weights cannot be converted; use the unquantised model")
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if hf.get(name):
            raise DataError(
                f"config.json: {name}={hf[name]}: a mixture of experts cannot be converted; use a dense one"
            )
    if hf.get("hidden_act", "silu") not in ("silu", "swish"):
        raise DataError(f"config.json: hidden_act={hf['hidden_act']!r}: the model's MLP is SwiGLU, silu only")
    for name in ("attention_bias", "mlp_bias"):
        if hf.get(name):
            raise DataError(f"config.json: {name}=true: the model has no bias on output or MLP projections")
    _refuse_sliding_window(hf, family)


def _refuse_sliding_window(hf: Mapping[str, Any], family: str) -> None:
    window = hf.get("sliding_window", 4096 if family in ("mistral", "qwen2", "qwen3") else None)
    layers = hf.get("layer_types")
    if isinstance(layers, list) and layers:
        in_force = any(kind != "full_attention" for kind in layers)
    elif family == "mistral":
        in_force = True
    else:
        in_force = bool(hf.get("use_sliding_window"))
    if in_force and window is not None:
        raise DataError(
            f"config.json: sliding_window={window} is in force: the model attends to all earlier tokens; for texts of "
            f'at most {window} tokens the two are equal, then set "sliding_window" to null in config.json'
        )


def _rope(hf: Mapping[str, Any]) -> dict[str, Any]:
    merged = {}
    for name in ("rope_scaling", "rope_parameters"):  # before and since transformers 5
        part = hf.get(name) or {}
        if not isinstance(part, dict) or any(isinstance(value, dict) for value in part.values()):
            raise DataError(f"config.json: {name}: rotary embeddings that differ by layer cannot be converted")
        merged |= part
    return merged


def _rope_scaling(hf: Mapping[str, Any]) -> RopeScaling | None:
    rope = _rope(hf)
    kind = rope.get("rope_type", rope.get("type", "default"))
    for fields in (hf, rope):
        if fields.get("partial_rotary_factor", 1) != 1:
            raise DataError(f"config.json: partial_rotary_factor={fields['partial_rotary_factor']} is not supported")
    if kind == "default":
        return None
    if kind != "llama3":
        raise DataError(f"config.json: rope scaling {kind!r} is not supported; default and llama3 are")
    return RopeScaling(
        factor=_positive(rope, "factor"),
        low_freq_factor=_positive(rope, "low_freq_factor"),
        high_freq_factor=_positive(rope, "high_freq_factor"),
        original_max_positions=int(_positive(rope, "original_max_position_embeddings")),
    )


def _residual(hf: Mapping[str, Any]) -> ResidualConfig:
    mode, gate = hf.get("attnres_mode"), hf.get("attnres_gate_type", "bias")
    if mode not in RELEASED_MODES:
        raise DataError(f"config.json: attnres_mode {mode!r} is not supported; {', '.join(RELEASED_MODES)} are")
    if gate not in RELEASED_GATES:
        raise DataError(f"config.json: attnres_gate_type {gate!r} is not supported; {', '.join(RELEASED_GATES)} are")
    name, options = RELEASED_MODES[mode]
    options = dict(options)
    if mode in ("block", "delta_block"):
        options["num_blocks"] = _size({**hf, "num_blocks": hf.get("attnres_num_blocks")}, "num_blocks")
    null_source = bool(hf.get("attnres_use_null_source", False))
    if name == "attnres":
        if RELEASED_GATES[gate] != "none" or null_source:
            raise DataError(f"config.json: attnres_mode {mode!r} with a gate or a null source is not supported")
        return ResidualConfig(name=name, options=options)
    return ResidualConfig(name=name, options={**options, "gate": RELEASED_GATES[gate], "null_source": null_source})


def _size(hf: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = hf.get(name)
    value = default if value is None else value
    if value is None:
        raise DataError(f"config.json: {name} is missing")
    limit = LIMITS.get(name, 2**12)
    if type(value) is not int or not 1 <= value <= limit:
        raise DataError(f"config.json: {name}={value!r} must be a whole number from 1 to {limit}")
    return value


def _positive(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = fields.get(name, default)
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise DataError(f"config.json: {name}={value!r} must be a positive number")
    return float(value)
