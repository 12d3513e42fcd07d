"""The files of a routed model's folder for transformers: its code, so that it opens where this package is not."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_dar.checkpoint.hf_config import DEFAULT_MAX_POSITIONS, kept_fields
from lightning_dar.checkpoint.hf_fields import SIZES
from lightning_dar.checkpoint.hf_rope import rope_fields
from lightning_dar.checkpoint.load import HF_DESCRIPTION_KEY, Checkpoint
from lightning_dar.errors import UsageError
from lightning_dar.residual.build import checked_options
from lightning_dar.residual.registry import residual_class

Definition = tuple[str, str]  # module, and name in it

PACKAGE = "lightning_dar"
MODELING = f"{PACKAGE}.checkpoint.hf_modeling"
CONFIGURATION = f"{PACKAGE}.checkpoint.hf_configuration"
FILE_NAMES = {MODELING: "modeling_lightning_dar", CONFIGURATION: "configuration_lightning_dar"}
PLACEHOLDER = ("lightning_dar.residual.standard", "Standard")


def routed_config(target: Checkpoint) -> dict[str, Any]:
    """`config.json`: the description of the model, where its code lies, and the sizes that transformers asks for."""
    config, origin = target.config, target.description.get("hf_config")
    kept = {key: value for key, value in target.description.items() if key not in ("tokenizer", "hf_config")}
    strategy = residual_class(target.residual.name, target.description["plugin"])
    kept["residual"] = {"name": target.residual.name, "options": checked_options(target.residual, strategy)}
    return {
        "model_type": PACKAGE,
        "architectures": ["RoutedForCausalLM"],
        "auto_map": {
            "AutoConfig": f"{FILE_NAMES[CONFIGURATION]}.RoutedConfig",
            "AutoModelForCausalLM": f"{FILE_NAMES[MODELING]}.RoutedForCausalLM",
        },
        HF_DESCRIPTION_KEY: kept,
        **{name: getattr(config, ours) for name, ours in SIZES.items()},
        "max_position_embeddings": target.seq_len or DEFAULT_MAX_POSITIONS,
        **rope_fields(config),
        **kept_fields(origin),
    }


def code_files(target: Checkpoint) -> dict[str, str]:
    """name -> text of every module that the model needs, as flat files that import each other relatively.

    Raises:
        UsageError: a plugin's strategy that imports this package in a way that cannot travel.
    """
    strategy = residual_class(target.residual.name, target.description["plugin"])
    own = {PLACEHOLDER: (strategy.__module__, strategy.__qualname__)}
    files: dict[str, str] = {}
    waiting = [MODELING]
    while waiting:
        module = waiting.pop()
        if f"{_flat(module)}.py" not in files:
            files[f"{_flat(module)}.py"], needed = _travelling(module, own)
            waiting += needed
    return files


def _travelling(module: str, exchanged: dict[Definition, Definition]) -> tuple[str, list[str]]:
    """A module's source with imports of this package made relative, and the modules that these are."""
    lines = _source(module).splitlines(keepends=True)
    needed: list[str] = []
    for node in reversed(list(ast.walk(ast.parse("".join(lines))))):
        if isinstance(node, ast.Import) and any(_is_ours(alias.name) for alias in node.names):
            raise UsageError(f"--format hf: {module} has 'import {PACKAGE}'; write 'from {PACKAGE} import ...' there")
        if not isinstance(node, ast.ImportFrom) or not _is_ours(node.module or ""):
            continue
        statements = []
        for alias in node.names:
            found = _definition(node.module, alias.name)
            home, name = exchanged.get(found, found)
            needed.append(home)
            local = alias.asname or alias.name
            statements.append(f"from .{_flat(home)} import {name}" + (f" as {local}" if local != name else ""))
        indent = " " * node.col_offset
        lines[node.lineno - 1 : node.end_lineno] = [f"{indent}{statement}\n" for statement in statements]
    return "".join(lines), needed


def _definition(module: str, name: str) -> Definition:
    """Where a name that is imported from a module of ours is defined: packages hand on what their files define."""
    for node in ast.parse(_source(module)).body:
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _definition(node.module, alias.name)
    return module, name


def _source(module: str) -> str:
    return Path(find_spec(module).origin).read_text(encoding="utf-8")


def _is_ours(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def _flat(module: str) -> str:
    return FILE_NAMES.get(module) or module.removeprefix(f"{PACKAGE}.").replace(".", "_")
