"""What a checkpoint says about itself, in plain types that load with `weights_only=True`."""

from dataclasses import asdict, replace
from typing import Any

from lightning_dar.model import TransformerConfig
from lightning_dar.model.build import checked_mlp
from lightning_dar.model.mlp import mlp_class
from lightning_dar.residual import Residual, ResidualConfig
from lightning_dar.residual.build import with_defaults
from lightning_dar.residual.registry import is_plugin
from lightning_dar.version import __version__

DESCRIPTION_KEY = "lightning_dar"
FORMAT = 2  # 2: the state of the run has one key (lightning_dar.run.state)


def describe(
    config: TransformerConfig,
    residual: Residual,
    residual_config: ResidualConfig,
    tokenizer: str | None = None,
    hf_config: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Architecture, strategy with options, the module that registers it, the tokenizer as its own JSON text, and the
    `config.json` of the model that this one comes from."""
    spelled_out = with_defaults(residual_config, type(residual))
    architecture = asdict(replace(config, mlp=checked_mlp(config.mlp)))
    mlp_home = mlp_class(config.mlp.kind).__module__
    del architecture["attention_backend"]  # like the depth read, a choice of the machine and not of the model
    return {
        "format": FORMAT,
        "version": __version__,
        "architecture": architecture,
        "residual": {"name": residual_config.name, "options": spelled_out.options},
        "plugin": type(residual).__module__,
        **({"mlp_plugin": mlp_home} if is_plugin(mlp_home) else {}),
        "tokenizer": tokenizer,
        "hf_config": hf_config,
    }
