"""The files of a routed model's folder for transformers: its code, so that it opens where this package is not."""

import hashlib
from dataclasses import dataclass
from typing import Any

from lightning_dar.checkpoint.description import FORMAT
from lightning_dar.checkpoint.hf_config import DEFAULT_MAX_POSITIONS, kept_fields, rope_fields
from lightning_dar.checkpoint.hf_fields import SIZES
from lightning_dar.checkpoint.load import HF_DESCRIPTION_KEY, Checkpoint
from lightning_dar.convert.bundle import Variable, bundle
from lightning_dar.convert.hf_verify import OLDEST
from lightning_dar.errors import UsageError
from lightning_dar.model.mlp import mlp_class
from lightning_dar.residual.build import checked_options
from lightning_dar.residual.registry import residual_class
from lightning_dar.version import __version__

PACKAGE = "lightning_dar"
MODELING = f"{PACKAGE}.convert.hf_modeling"
CONFIG_CLASS = Variable(f"{PACKAGE}.convert.hf_configuration", "RoutedConfig")
MODEL_CLASS = Variable(MODELING, "RoutedForCausalLM")
PLACEHOLDER = Variable(f"{PACKAGE}.residual.standard", "Standard")
MLP_PLACEHOLDER = Variable(f"{PACKAGE}.model.mlp", "MLP")
IDENTITY = 'FORMAT, RESIDUAL, CODE = 1, "standard", ""'  # the line of hf_configuration.py that is exchanged
NEEDED = {"torch", "transformers"}
HEADER = '''"""Configuration and model of a transformer with residual strategy {residual!r}.

For transformers {oldest} or later, by lightning_dar {version}. The name of this file is a hash of what it holds, so
that models of different code can be used side by side; config.json refers to it. It is made of the modules below, each
after those that it needs.
"""

import transformers

if tuple(int(number) for number in transformers.__version__.split(".")[:2]) < {release}:
    raise ImportError(f"this model needs transformers {oldest} or later; {{transformers.__version__}} is installed")


'''


@dataclass(frozen=True)
class ModelCode:
    """The modeling file.

    Attributes:
        name: a hash of what it holds.
        text: configuration, model and all that they import but packages.
        modules: what it is made of.
        packages: what it imports besides torch, transformers and the standard library.
    """

    name: str
    text: str
    modules: tuple[str, ...]
    packages: tuple[str, ...]

    @property
    def file(self) -> str:
        return f"{self.module}.py"

    @property
    def module(self) -> str:
        return f"modeling_lightning_dar_{self.name}"


def routed_config(target: Checkpoint, code: ModelCode) -> dict[str, Any]:
    """`config.json`: the description of the model, where its code lies, and the sizes that transformers asks for."""
    config, origin = target.config, target.description.get("hf_config")
    kept = {key: value for key, value in target.description.items() if key not in ("tokenizer", "hf_config")}
    strategy = residual_class(target.residual.name, target.description["plugin"])
    kept["residual"] = {"name": target.residual.name, "options": checked_options(target.residual, strategy)}
    return {
        "model_type": PACKAGE,
        "architectures": [MODEL_CLASS.name],
        "auto_map": {
            "AutoConfig": f"{code.module}.{CONFIG_CLASS.name}",
            "AutoModelForCausalLM": f"{code.module}.{MODEL_CLASS.name}",
        },
        HF_DESCRIPTION_KEY: {**kept, "code": code.name},
        **{name: getattr(config, ours) for name, ours in SIZES.items()},
        "max_position_embeddings": target.seq_len or DEFAULT_MAX_POSITIONS,
        **rope_fields(config),
        **kept_fields(origin),
    }


def model_code(target: Checkpoint) -> ModelCode:
    """The one file that the model needs, with its residual strategy in place of the placeholder.

    Raises:
        UsageError: code of a plugin that cannot travel, by module and line.
    """
    name = target.residual.name
    strategy = residual_class(name, target.description["plugin"])
    home, inner = strategy.__module__, strategy.__qualname__
    if "<locals>" in inner:
        raise UsageError(
            f"--format hf: residual strategy '{name}' ({home}.{inner}) is made inside a function; define its class in "
            "the module itself"
        )
    mlp = mlp_class(target.config.mlp.kind)
    made = bundle(
        MODELING,
        roots={PACKAGE, home.partition(".")[0], mlp.__module__.partition(".")[0]},
        exchanged={PLACEHOLDER: Variable(home, inner), MLP_PLACEHOLDER: Variable(mlp.__module__, mlp.__qualname__)},
        kept={CONFIG_CLASS, MODEL_CLASS},
        trusted=PACKAGE,
    )
    header = HEADER.format(residual=name, version=__version__, oldest=".".join(map(str, OLDEST)), release=OLDEST)
    text = header + made.text
    assert text.count(IDENTITY) == 1
    text = text.replace(IDENTITY, f"FORMAT, RESIDUAL = {FORMAT}, {name!r}\nCODE = ''")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    text = text.replace("\nCODE = ''", f"\nCODE = {digest!r}")
    return ModelCode(digest, text, tuple(made.modules), tuple(sorted(made.packages - NEEDED)))
