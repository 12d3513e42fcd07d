"""What a module of the user's may do that a single file elsewhere cannot; refused by module and line."""

import ast

from lightning_dar.convert.bundle.modules import Module
from lightning_dar.errors import UsageError

OWN_PLACE = {"__file__", "__path__", "__spec__", "__loader__", "__package__"}
FILES = ("importlib.resources", "importlib_resources", "pkgutil", "pkg_resources")


def refuse_what_cannot_travel(module: Module) -> None:
    """Raises UsageError for files beside the module, and for imports that cannot be followed."""
    for one in [*module.imported, *module.stars]:
        for place in FILES:
            if one.kind != "idle" and f"{one.loads}.{one.name}.".startswith(f"{place}."):
                raise _refusal(module, one.statement.node, f"reads files of its package ({place})")
    for use in module.names.uses:
        name = ".".join([use.name, *(attribute.attr for attribute in use.chain)])
        for one in module.imported:
            if one.local == use.name and one.owner is use.owner and one.kind == "stays":
                whole = f"{one.module}.{one.name}" if one.name else f"{one.module}{name.removeprefix(use.name)}"
                if whole == "importlib.import_module":
                    raise _refusal(module, use.node, "imports by a name that it computes (importlib.import_module)")
                if whole.startswith(FILES):
                    raise _refusal(module, use.node, f"reads files of its package ({whole})")
        if use.owner is not module.names.module:
            continue
        if use.name == "__getattr__" and use.binds:
            raise _refusal(module, use.node, "defines names while a program runs (__getattr__)")
        if use.name not in module.bound:
            if use.name in OWN_PLACE:
                raise _refusal(module, use.node, f"asks where it lies ({use.name})")
            if use.name == "__import__":
                raise _refusal(module, use.node, "imports by a name that it computes (__import__)")


def _refusal(module: Module, node: ast.AST, what: str) -> UsageError:
    return UsageError(
        f"--format hf: {module.line(node)} {what}, which cannot travel with the model; write what the strategy needs "
        "as Python values, and import modules by an import statement"
    )
