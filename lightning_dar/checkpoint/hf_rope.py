"""The rotary embeddings of a transformers `config.json` <-> ours, in every spelling that transformers reads."""

from collections.abc import Mapping
from typing import Any

from lightning_dar.checkpoint.hf_values import positive
from lightning_dar.errors import DataError
from lightning_dar.model import RopeScaling, TransformerConfig

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
