"""Routed models for transformers, and the Qwen3 of transformers with the same weights to compare `standard` with."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tiny import scramble, tiny_config, tiny_model
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from lightning_dar.checkpoint.description import describe
from lightning_dar.checkpoint.families import name_table
from lightning_dar.checkpoint.hf_fields import hf_name
from lightning_dar.checkpoint.load import tensor_infos
from lightning_dar.convert.convert import Conversion, convert
from lightning_dar.convert.hf_modeling import RoutedConfig, RoutedForCausalLM
from lightning_dar.model import Transformer, TransformerConfig
from lightning_dar.residual import ResidualConfig


def standard_config(sizes: TransformerConfig | None = None, **fields: Any) -> RoutedConfig:
    """A config of the class that travels, at residual `standard`, which `convert` writes as a plain Qwen3 instead."""
    architecture = asdict(sizes or tiny_config())
    del architecture["attention_backend"]
    residual = {"name": "standard", "options": {}}
    return RoutedConfig(lightning_dar={"architecture": architecture, "residual": residual}, **fields)


def twins(tied: bool = True, **fields: Any) -> tuple[RoutedForCausalLM, Qwen3ForCausalLM]:
    """Our model at `standard` and Qwen3 of transformers, with the same random weights, in evaluation mode."""
    sizes = tiny_config(tie_embeddings=tied)
    ours = RoutedForCausalLM(standard_config(sizes, **fields))
    theirs = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.hidden_size,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            num_key_value_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            intermediate_size=sizes.intermediate_size,
            rms_norm_eps=sizes.norm_eps,
            rope_theta=sizes.rope_theta,
            tie_word_embeddings=tied,
            **fields,
        )
    )
    scramble_hf(theirs)
    state = theirs.state_dict()
    table = name_table("qwen3", sizes.num_layers, tensor_infos(tiny_model("standard", sizes)))
    ours.load_state_dict({hf_name(place.name): state[name] for name, place in table.items()}, strict=not tied)
    ours.tie_weights()
    return ours.eval(), theirs.eval()


@torch.no_grad()
def scramble_hf(model: PreTrainedModel) -> None:
    """Random weights of order one."""
    for parameter in model.parameters():
        parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.3)
    model.tie_weights()


def exported(folder: Path, name: str, sizes: TransformerConfig | None = None, **options: Any) -> Transformer:
    """Writes a scrambled model as a folder for transformers; returns it."""
    model = scramble(tiny_model(name, sizes, **options)).eval()
    residual = ResidualConfig(name=name, options=options)
    weights = {f"model.{key}": tensor for key, tensor in model.state_dict().items()}
    source = folder.with_suffix(".ckpt")
    torch.save({"lightning_dar": describe(model.config, model.residual, residual), "state_dict": weights}, source)
    convert(Conversion(source=str(source), output=str(folder), format="hf", verify=False))
    return model


def opened(folder: Path, **options: Any) -> PreTrainedModel:
    """The folder's model, with the folder's own code."""
    return AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, **options).eval()
