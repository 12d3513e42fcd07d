"""Tensor names of other model families, and tensors that are stored twice.

{layer} is the layer l, {attention} and {mlp} are its sites 2l and 2l + 1, {sites} is their number 2L. `[row]` is a
row of a parameter of ours that is stacked over sites.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_dar.checkpoint.tensors import TensorInfo, Tensors
from lightning_dar.errors import DataError
from lightning_dar.model import TransformerConfig
from lightning_dar.model.rope import rope_frequencies

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FREQUENCIES = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")  # old checkpoints keep these
ROUNDINGS = 4  # of the dtype that the frequencies are stored in


def untied_where_different(config: TransformerConfig, theirs: Tensors) -> tuple[TransformerConfig, tuple[str, ...]]:
    """The architecture as the weights have it, and what has to be said about it.

    A head stored beside an embedding that `config.json` ties it to is read and compared: where they differ, the head
    counts, as in transformers 5.
    """
    if not config.tie_embeddings or HEAD not in theirs.infos or EMBEDDING not in theirs.infos:
        return config, ()
    if theirs.infos[HEAD] == theirs.infos[EMBEDDING] and torch.equal(theirs.read(HEAD), theirs.read(EMBEDDING)):
        return config, (f"{HEAD} is {EMBEDDING} to the last bit: stored once",)
    note = f"{HEAD} differs from {EMBEDDING}, though config.json ties them: both are kept, tie_word_embeddings is false"
    return replace(config, tie_embeddings=False), (note,)


def left_out(theirs: Tensors, config: TransformerConfig) -> set[str]:
    """The names that need no place in a model of this architecture.

    Raises:
        DataError: rotary frequencies that are not those of `config.json`.
    """
    names = {name for name in theirs.infos if FREQUENCIES.fullmatch(name)}
    expected = rope_frequencies(config.head_dim, config.rope_theta, torch.device("cpu"), config.rope_scaling)
    for name in sorted(names):
        if not _is_rounded(theirs, name, expected):
            raise DataError(
                f"{name} is not what rope_theta={config.rope_theta:g} in config.json says; correct the one or remove "
                "the other"
            )
    return names | ({HEAD} if config.tie_embeddings and EMBEDDING in theirs.infos else set())


def _is_rounded(theirs: Tensors, name: str, expected: Tensor) -> bool:
    """Whether the stored values are `expected`, rounded to the dtype that they are stored in."""
    info = theirs.infos[name]
    if info.shape != tuple(expected.shape):
        return False
    precision = torch.finfo(info.dtype)
    found = theirs.read(name).to(expected.dtype)
    return torch.allclose(
        found, expected, rtol=ROUNDINGS * precision.eps, atol=ROUNDINGS * precision.smallest_normal * precision.eps
    )


TRANSFORMERS_NAMES = {
    "model.embed_tokens.weight": "embed.weight",
    "model.layers.{layer}.input_layernorm.weight": "sublayers.{attention}.norm.weight",
    "model.layers.{layer}.self_attn.q_proj.weight": "sublayers.{attention}.q_proj.weight",
    "model.layers.{layer}.self_attn.k_proj.weight": "sublayers.{attention}.k_proj.weight",
    "model.layers.{layer}.self_attn.v_proj.weight": "sublayers.{attention}.v_proj.weight",
    "model.layers.{layer}.self_attn.o_proj.weight": "sublayers.{attention}.o_proj.weight",
    "model.layers.{layer}.post_attention_layernorm.weight": "sublayers.{mlp}.norm.weight",
    "model.layers.{layer}.mlp.gate_proj.weight": "sublayers.{mlp}.gate_proj.weight",
    "model.layers.{layer}.mlp.up_proj.weight": "sublayers.{mlp}.up_proj.weight",
    "model.layers.{layer}.mlp.down_proj.weight": "sublayers.{mlp}.down_proj.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
}
QK_NORM_NAMES = {
    "model.layers.{layer}.self_attn.q_norm.weight": "sublayers.{attention}.q_norm.weight",
    "model.layers.{layer}.self_attn.k_norm.weight": "sublayers.{attention}.k_norm.weight",
}
QKV_BIAS_NAMES = {
    "model.layers.{layer}.self_attn.q_proj.bias": "sublayers.{attention}.q_proj.bias",
    "model.layers.{layer}.self_attn.k_proj.bias": "sublayers.{attention}.k_proj.bias",
    "model.layers.{layer}.self_attn.v_proj.bias": "sublayers.{attention}.v_proj.bias",
}
RELEASED_ROUTING_NAMES = {
    "model.layers.{layer}.attn_res_proj.weight": "residual.query[{attention}]",
    "model.layers.{layer}.attn_res_norm.weight": "residual.gain[{attention}]",
    "model.layers.{layer}.attn_res_alpha": "residual.gate[{attention}]",
    "model.layers.{layer}.attn_null_source": "residual.null_source[{attention}]",
    "model.layers.{layer}.mlp_res_proj.weight": "residual.query[{mlp}]",
    "model.layers.{layer}.mlp_res_norm.weight": "residual.gain[{mlp}]",
    "model.layers.{layer}.mlp_res_alpha": "residual.gate[{mlp}]",
    "model.layers.{layer}.mlp_null_source": "residual.null_source[{mlp}]",
    "model.final_res_proj.weight": "residual.query[{sites}]",
    "model.final_res_norm.weight": "residual.gain[{sites}]",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of checkpoint that we read and, with `architecture`, write."""

    names: Mapping[str, str]
    qk_norm: bool = False
    qkv_bias: bool = False
    architecture: str | None = None


FAMILIES = {
    "qwen3": Family(names=TRANSFORMERS_NAMES | QK_NORM_NAMES, qk_norm=True, architecture="Qwen3ForCausalLM"),
    "qwen2": Family(names=TRANSFORMERS_NAMES | QKV_BIAS_NAMES, qkv_bias=True, architecture="Qwen2ForCausalLM"),
    "llama": Family(names=TRANSFORMERS_NAMES, architecture="LlamaForCausalLM"),
    "mistral": Family(names=TRANSFORMERS_NAMES, architecture="MistralForCausalLM"),
    "qwen3_attnres": Family(names=TRANSFORMERS_NAMES | QK_NORM_NAMES | RELEASED_ROUTING_NAMES, qk_norm=True),
}


class Place(NamedTuple):
    """A parameter of ours, or a row of one."""

    name: str
    row: int | None


def name_table(family: str, num_layers: int, ours: Mapping[str, TensorInfo]) -> dict[str, Place]:
    """Every tensor that a checkpoint must have -> its place in a model with the parameters `ours`."""
    table = {}
    for theirs, pattern in FAMILIES[family].names.items():
        for layer in range(num_layers if "{layer}" in theirs else 1):
            numbers = {"layer": layer, "attention": 2 * layer, "mlp": 2 * layer + 1, "sites": 2 * num_layers}
            name, _, row = pattern.format(**numbers).removesuffix("]").partition("[")
            place = Place(name, int(row) if row else None)
            if name in ours and (place.row is None or place.row < ours[name].shape[0]):
                table[theirs.format(**numbers)] = place
    return table


class Renamed(Tensors):
    """A family's tensors under our names, rows stacked.

    Args:
        theirs: tensors under the family's names.
        family: key of `FAMILIES`.
        config: the architecture.
        ours: the parameters that our model has.

    Raises:
        DataError: tensors that are missing, unknown or wrongly shaped; all of them, at once.
    """

    def __init__(self, theirs: Tensors, family: str, config: TransformerConfig, ours: Mapping[str, TensorInfo]):
        self._theirs = theirs
        table = name_table(family, config.num_layers, ours)
        if config.tie_embeddings and EMBEDDING not in theirs.infos and HEAD in theirs.infos:
            table[HEAD] = table.pop(EMBEDDING)  # the one of the two that is stored counts for both
        _check(theirs, table, ours, left_out(theirs, config))
        self._sources: dict[str, list[str]] = {}
        for source, place in sorted(table.items(), key=lambda item: item[1].row or 0):
            self._sources.setdefault(place.name, []).append(source)
        self._stacked = {place.name for place in table.values() if place.row is not None}
        for name in self._stacked:
            if len({theirs.infos[source].dtype for source in self._sources[name]}) > 1:
                raise DataError(f"{', '.join(self._sources[name])} have several dtypes; save them in one")
        self.infos = {name: TensorInfo(ours[name].shape, theirs.infos[self._sources[name][0]].dtype) for name in ours}

    def read(self, name: str) -> Tensor:
        if name not in self._stacked:
            return self._theirs.read(self._sources[name][0])
        rows = [self._theirs.read(source).flatten() for source in self._sources[name]]
        return torch.stack(rows).reshape(self.infos[name].shape)


class Exported(Tensors):
    """Our tensors under a family's names: the same table, read the other way."""

    def __init__(self, ours: Tensors, family: str, num_layers: int):
        self._ours = ours
        table = name_table(family, num_layers, ours.infos)
        unnamed = sorted(set(ours.infos) - {place.name for place in table.values() if place.row is None})
        if unnamed:
            raise DataError(f"a {family} checkpoint has no place for {', '.join(unnamed)}")
        self._name = {theirs: place.name for theirs, place in table.items()}
        self.infos = {theirs: ours.infos[name] for theirs, name in self._name.items()}

    def read(self, name: str) -> Tensor:
        return self._ours.read(self._name[name])


def _check(theirs: Tensors, table: Mapping[str, Place], ours: Mapping[str, TensorInfo], known: set[str]) -> None:
    found = set(theirs.infos) - known
    problems = [f"missing {name}" for name in table if name not in found]
    problems += [f"unknown {name}" for name in sorted(found) if name not in table]
    for name in found & set(table):
        place = table[name]
        expected = ours[place.name].shape[0 if place.row is None else 1 :]
        shape = theirs.infos[name].shape
        if place.row is not None:  # they keep a row as [1, D] or [D], a scalar as [] or [1]
            shape, expected = ([size for size in sizes if size != 1] for sizes in (shape, expected))
        if list(shape) != list(expected):
            problems.append(f"{name} has shape {list(shape)}, not {list(expected)}")
    if problems:
        raise DataError(f"the tensors do not fit config.json: {'; '.join(problems)}")
