"""Numbers of a `config.json`, which others wrote: of the right kind and of sensible size, or refused by name."""

from collections.abc import Mapping
from typing import Any

from lightning_dar.errors import DataError

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
