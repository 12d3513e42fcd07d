"""The `config.json` of transformers' models, read into our own architecture."""

from collections.abc import Mapping
from typing import Any

from lightning_dar.checkpoint.families import FAMILIES
from lightning_dar.errors import DataError, UsageError
from lightning_dar.model import MLPConfig, RopeScaling, TransformerConfig
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


def size(fields: Mapping[str, Any], name: str, absent: int | None = None, null: int | None = None) -> int:
    """A positive whole number; `absent` where the name is missing, `null` where it is there without a value."""
    value = fields.get(name, absent)
    value = null if value is None else value
    if value is None:
        raise DataError(f"config.json: {name} is missing")
    limit = LIMITS.get(name, 2**12)
    if type(value) is not int or not 1 <= value <= limit:
        raise DataError(f"config.json: {name}={value!r} must be a whole number from 1 to {limit}")
    return value


def positive(fields: Mapping[str, Any], name: str, absent: float | None = None) -> float:
    value = fields.get(name, absent)
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise DataError(f"config.json: {name}={value!r} must be a positive number")
    return float(value)


def flag(fields: Mapping[str, Any], name: str, absent: bool) -> bool:
    value = fields.get(name, absent)
    if type(value) is not bool:
        raise DataError(f"config.json: {name}={value!r} must be true or false")
    return value


COMMON_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
LLAMA3_KEYS = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
DEFAULT_THETA = 10_000.0


def read_rope(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """The base, and the scaling if there is one.

    As in transformers 5, `rope_scaling` takes the place of `rope_parameters` where it says anything, and `rope_theta`
    beside them counts where the one that holds has none.

    Raises:
        DataError: a scaling other than llama3, one that differs by layer, or keys that contradict each other.
    """
    key = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    rope = hf.get(key) or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise DataError(f"config.json: {key}: rotary embeddings that differ by layer cannot be converted")
    kinds = {rope[name] for name in ("rope_type", "type") if name in rope} or {"default"}
    if len(kinds) > 1:
        raise DataError(f"config.json: {key}: type={rope['type']!r} contradicts rope_type={rope['rope_type']!r}")
    kind = kinds.pop()
    if kind not in ("default", "llama3"):
        raise DataError(f"config.json: {key}: rope scaling {kind!r} is not supported; default and llama3 are")
    _refuse_leftovers(hf, rope, key, kind)
    beside = hf.get("original_max_position_embeddings")
    if kind == "llama3" and beside not in (None, rope.get("original_max_position_embeddings")):
        raise DataError(f"config.json: original_max_position_embeddings={beside} contradicts the one in {key}")
    theta = positive(rope if "rope_theta" in rope else hf, "rope_theta", DEFAULT_THETA)
    return theta, _llama3(rope) if kind == "llama3" else None


def rope_fields(config: TransformerConfig) -> dict[str, Any]:
    """The rotary embeddings as transformers 5 writes them, and `rope_theta` for readers before it."""
    parameters = {**_scaling_fields(config), "rope_theta": config.rope_theta}
    return {"rope_theta": config.rope_theta, "rope_parameters": parameters}


def portable_rope_fields(config: TransformerConfig) -> dict[str, Any]:
    """`rope_fields` with `rope_scaling`, the name that readers before transformers 5 know, in place of any other."""
    return {**rope_fields(config), "rope_scaling": _scaling_fields(config) if config.rope_scaling else None}


def _refuse_leftovers(hf: Mapping[str, Any], rope: Mapping[str, Any], key: str, kind: str) -> None:
    for fields in (hf, rope):
        if fields.get("partial_rotary_factor") not in (None, 1):
            raise DataError(f"config.json: partial_rotary_factor={fields['partial_rotary_factor']} is not supported")
    known = COMMON_KEYS | (LLAMA3_KEYS if kind == "llama3" else set())
    leftover = sorted(name for name, value in rope.items() if name not in known and value is not None)
    if leftover:
        raise DataError(
            f"config.json: {key}: {', '.join(leftover)} has no meaning for rope scaling {kind!r}; remove it"
        )


def _llama3(rope: Mapping[str, Any]) -> RopeScaling:
    positions = positive(rope, "original_max_position_embeddings")
    if positions != int(positions):
        raise DataError(f"config.json: original_max_position_embeddings={positions} must be a whole number")
    return RopeScaling(
        factor=positive(rope, "factor"),
        low_freq_factor=positive(rope, "low_freq_factor"),
        high_freq_factor=positive(rope, "high_freq_factor"),
        original_max_positions=int(positions),
    )


def _scaling_fields(config: TransformerConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_type": "default"}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_positions,
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
INIT_STD = 0.02  # of the families' `initializer_range`; pretrained weights are not drawn again


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
    heads, hidden = size(hf, "num_attention_heads"), size(hf, "hidden_size")
    rope_theta, rope_scaling = read_rope(hf)
    try:
        config = TransformerConfig(
            vocab_size=size(hf, "vocab_size"),
            hidden_size=hidden,
            num_layers=size(hf, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=size(hf, "num_key_value_heads", {"mistral": 8, "llama": heads}.get(family, 32), null=heads),
            head_dim=size(hf, "head_dim", 128 if family == "qwen3" else hidden // heads, null=hidden // heads),
            intermediate_size=size(hf, "intermediate_size"),
            norm_eps=positive(hf, "rms_norm_eps", 1e-6),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            qk_norm=FAMILIES[family].qk_norm,
            qkv_bias=FAMILIES[family].qkv_bias,
            tie_embeddings=flag(hf, "tie_word_embeddings", False),
            init_std=INIT_STD,
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
        return {**origin, **portable_rope_fields(config)}
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
        **portable_rope_fields(config),
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


def family_of(config: TransformerConfig, origin: Mapping[str, Any] | None = None) -> str:
    """The family whose features the architecture has; that of the origin where it still fits. Raises DataError."""
    if config.mlp != MLPConfig():
        raise DataError(
            f"model.mlp.kind={config.mlp.kind}: a plain folder of {', '.join(FAMILIES)} has SwiGLU alone; "
            "--format lightning keeps this one"
        )
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
    if hf.get("per_layer_config"):
        raise DataError("config.json: per_layer_config: all layers of the model have the same sizes")
    if not hf.get("is_causal", True):
        raise DataError("config.json: is_causal=false: the model's attention is causal")
    if hf.get("hidden_act", "silu") not in ("silu", "swish"):
        raise DataError(f"config.json: hidden_act={hf['hidden_act']!r}: the model's MLP is SwiGLU, silu only")
    for name in ("attention_bias", "mlp_bias"):
        if hf.get(name):
            raise DataError(f"config.json: {name}=true: the model has no bias on output or MLP projections")
    _refuse_sliding_window(hf, family)


def _refuse_sliding_window(hf: Mapping[str, Any], family: str) -> None:
    layers, window = hf.get("layer_types"), hf.get("sliding_window", 4096)
    if layers is not None and (not isinstance(layers, list) or len(layers) != hf.get("num_hidden_layers")):
        raise DataError(f"config.json: layer_types={layers!r} must name the kind of each of num_hidden_layers")
    by_layer = [kind for kind in layers or [] if kind != "full_attention"]
    if family == "mistral":
        in_force = window is not None
    elif layers is None and family != "llama":
        in_force = bool(hf.get("use_sliding_window")) and window is not None
    else:
        in_force = False
    if in_force or by_layer:
        kinds = f", layer_types has {by_layer[0]!r}" if by_layer else ""
        raise DataError(
            f"config.json: sliding_window={window} is in force{kinds}: the model attends to all earlier tokens; for "
            f'texts of at most {window} tokens the two are equal, then set "sliding_window" to null'
            + (' and all "layer_types" to "full_attention"' if by_layer else "")
            + " in config.json"
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
        options["num_blocks"] = size({**hf, "num_blocks": hf.get("attnres_num_blocks")}, "num_blocks")
    null_source = bool(hf.get("attnres_use_null_source", False))
    if name == "attnres":
        if RELEASED_GATES[gate] != "none" or null_source:
            raise DataError(f"config.json: attnres_mode {mode!r} with a gate or a null source is not supported")
        return ResidualConfig(name=name, options=options)
    return ResidualConfig(name=name, options={**options, "gate": RELEASED_GATES[gate], "null_source": null_source})
