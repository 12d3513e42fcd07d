"""The modules that travel: their text, their imports, and where each name is defined."""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.metadata import distributions
from importlib.util import find_spec, resolve_name
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from lightning_dar.convert.bundle.scopes import ImportStatement, Names, Scope, Use
from lightning_dar.errors import UsageError

DEFINED = re.compile(rb"(?:(?:async\s+)?def|class)\s+(\w+)")
STANDARD = Path(json.__file__).parents[1]
INSTALLED = {"site-packages", "dist-packages"}  # folders


class Variable(NamedTuple):
    """A name of a module that travels; of what is imported from elsewhere, `owner` is the import."""

    owner: str
    name: str

    @property
    def travels(self) -> bool:
        return " " not in self.owner


class ModuleName(NamedTuple):
    """A module that travels, as the value of a name."""

    module: str


@dataclass(eq=False)
class Imported:
    """One name that an import statement binds.

    Attributes:
        statement: where.
        local: the name that it binds.
        module: the module that it binds, or of which it binds a name.
        name: that name; None for `import module`.
        loads: the module that runs by it.
        kind: `travels`, `stays` (of another package), `missing` (an alternative that is not there where the model is
            exported) or `idle` (never run, see `NOT_RUN`).
        star: whether by `from module import *`.
    """

    statement: ImportStatement
    local: str
    module: str
    name: str | None
    loads: str
    kind: str
    star: bool = False

    @property
    def owner(self) -> Scope:
        return self.statement.scope.owner(self.local)

    @property
    def value(self) -> str:
        """The same text for imports of the same thing."""
        parent, _, last = self.module.rpartition(".")
        if self.name is not None:
            return f"from {self.module} import {self.name}"
        return f"from {parent} import {last}" if parent else f"import {last}"

    def text(self, local: str) -> str:
        """The import as a statement that binds `local`."""
        if self.name is not None:
            return self.value + (f" as {local}" if local != self.name else "")
        if local == self.module:
            return f"import {self.loads}"
        first = f"import {self.loads}; " if self.loads != self.module else ""
        return f"{first}import {self.module} as {local}"


@dataclass(eq=False)
class Module:
    name: str
    is_package: bool
    source: bytes
    tree: ast.Module
    names: Names
    imported: list[Imported] = field(default_factory=list)
    stars: list[Imported] = field(default_factory=list)
    bound: dict[str, list[Imported | Use]] = field(default_factory=dict)  # names of the module itself
    rebound: set[str] = field(default_factory=set)  # by functions, while the module is in use

    def line(self, node: ast.AST) -> str:
        return f"{self.name}, line {node.lineno}"

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The bytes at which a node's text starts and ends."""
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[node.end_lineno - 1] + node.end_col_offset

    def place(self, use: Use) -> tuple[int, int] | None:
        """The bytes of the name itself; None where that cannot be told."""
        start, end = self.span(use.node)
        name = use.name.encode()
        if isinstance(use.node, ast.Name):  # Python 3.11 misplaces names in some f-strings
            return (start, end) if self.source[start:end] == name else None
        found = DEFINED.match(self.source, start)
        return found.span(1) if found and found[1] == name else None

    @cached_property
    def _lines(self) -> list[int]:
        """The byte at which each line starts."""
        return [0, *accumulate(len(line) for line in self.source.splitlines(keepends=True))]


class Modules:
    """Finds and reads modules by name.

    Args:
        roots: top-level packages that travel even where they are installed.
        exchanged: imports to replace, (module, name) -> (module, name).
    """

    def __init__(self, roots: set[str], exchanged: dict[Variable, Variable]):
        self._roots, self._exchanged = roots, exchanged
        self._read: dict[str, Module] = {}

    def travels(self, module: str) -> bool:
        root = module.partition(".")[0]
        return root in self._roots or not _is_installed(root)

    def __getitem__(self, name: str) -> Module:
        if name not in self._read:
            self._read[name] = module = self._open(name)
            self._bind(module)
        return self._read[name]

    def definition(self, module: str, name: str) -> Variable | ModuleName | None:
        """The place that defines what `from module import name` gives. Packages hand on what their files define."""
        known = self[module]
        submodule = ModuleName(f"{module}.{name}") if known.is_package else None
        bindings = [one for one in known.bound.get(name, []) if not (_is_idle(one) or _is_import_of(one, submodule))]
        travelling = [b for b in bindings if isinstance(b, Imported) and b.kind == "travels"]
        if len({b.value for b in travelling}) == 1 and len(travelling) == len(bindings):
            source, original = travelling[0].module, travelling[0].name
            found = ModuleName(source) if original is None else self.definition(source, original)
            if isinstance(found, Variable) and self.is_rebound(found):
                return Variable(module, name)  # a copy of what it was then
            return found
        if bindings:
            return self._outside(bindings) or Variable(module, name)
        for star in reversed(known.stars):
            if name in exported(star.module):
                if star.kind == "travels":
                    return self.definition(star.module, name)
                self.bind_star(known, star, name)
                return self.definition(module, name)
        return submodule if submodule is not None and find_spec(submodule.module) is not None else None

    def is_rebound(self, variable: Variable) -> bool:
        return variable.travels and variable.name in self[variable.owner].rebound

    def bind_star(self, module: Module, star: Imported, name: str) -> None:
        """`name` as one of the names that `from ... import *` binds."""
        one = replace(star, local=name, name=name)
        module.imported.append(one)
        module.bound.setdefault(name, []).append(one)

    def _outside(self, bindings: list[Imported | Use]) -> Variable | None:
        """What is imported from a package that stays: the same for all that import it."""
        values = {b.value if isinstance(b, Imported) and b.kind == "stays" else None for b in bindings}
        value = values.pop()
        return Variable(value, bindings[0].local) if value is not None and not values else None

    def _open(self, name: str) -> Module:
        try:
            spec = find_spec(name)
        except (ValueError, ImportError, AttributeError):
            spec = None
        if name == "__main__" or spec is None:
            raise UsageError(f"--format hf: module '{name}' is no file that can travel; put its code into a module")
        is_package = spec.submodule_search_locations is not None
        if spec.origin is None and is_package:  # a folder without __init__.py
            source = ""
        else:
            source = spec.loader.get_source(name) if hasattr(spec.loader, "get_source") else None
        if source is None:
            raise UsageError(
                f"--format hf: module '{name}' ({spec.origin}) has no Python source, so it cannot travel with the "
                "model; install it as a package of its own, or write in Python what the strategy needs of it"
            )
        tree = ast.parse(source)
        return Module(name, is_package, source.encode(), tree, Names(tree))

    def _bind(self, module: Module) -> None:
        for statement in module.names.imports:
            for one in self._imported(module, statement):
                (module.stars if one.star else module.imported).append(one)
                if not one.star and one.owner is module.names.module:
                    module.bound.setdefault(one.local, []).append(one)
                    if statement.scope.in_function:
                        module.rebound.add(one.local)
        for use in module.names.uses:
            if use.binds and use.owner is module.names.module:
                module.bound.setdefault(use.name, []).append(use)
                if use.scope.in_function:
                    module.rebound.add(use.name)
        used = {use.name for use in module.names.uses if use.owner is module.names.module}
        for star in module.stars:
            for name in sorted(exported(star.module) & used):
                self.bind_star(module, star, name)

    def _imported(self, module: Module, statement: ImportStatement) -> Iterator[Imported]:
        node = statement.node
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                kind = self._kind(statement, alias.name, None)
                yield Imported(statement, alias.asname or bound, bound, None, alias.name, kind)
            return
        package = module.name if module.is_package else module.name.rpartition(".")[0]
        source = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
        for alias in node.names:
            wanted = Variable(source, alias.name)
            home, name = self._exchanged.get(wanted, wanted)
            kind, local = self._kind(statement, home, name), alias.asname or alias.name
            yield Imported(statement, local, home, name, home, kind, star=name == "*")

    def _kind(self, statement: ImportStatement, target: str, name: str | None) -> str:
        if statement.not_run:
            return "idle"
        if not self.travels(target):
            return "stays"
        if statement.in_try and not statement.scope.in_function:  # it has been tried in this process
            loaded = sys.modules.get(target)
            if loaded is None or not (name in (None, "*") or hasattr(loaded, name)):
                return "missing"
        return "travels"


def _is_idle(binding: Imported | Use) -> bool:
    return isinstance(binding, Imported) and binding.kind == "idle"


def _is_import_of(binding: Imported | Use, submodule: ModuleName | None) -> bool:
    """Whether this is `from . import submodule` in its own package."""
    return (
        submodule is not None
        and isinstance(binding, Imported)
        and binding.kind == "travels"
        and submodule.module == f"{binding.module}.{binding.name}"
    )


@cache
def exported(module: str) -> frozenset[str]:
    """What `from module import *` gives."""
    content = vars(importlib.import_module(module))
    return frozenset(content.get("__all__", [name for name in content if not name.startswith("_")]))


@cache
def _is_installed(root: str) -> bool:
    """Whether Python or pip brings this top-level package; a folder or file of the user's own travels."""
    try:
        spec = find_spec(root)
    except ValueError:  # a module that is no file
        return True
    if spec is None or spec.origin in ("built-in", "frozen") or root in _editable():
        return True  # not here: an optional package
    places = [Path(place) for place in [spec.origin, *(spec.submodule_search_locations or [])] if place is not None]
    if any(place.is_relative_to(STANDARD) or INSTALLED & set(place.parts) for place in places):
        return True
    folders = {folder for place in places for folder in (place.parent, place.parent.parent)}
    return any(next(folder.glob("*.dist-info"), None) is not None for folder in folders)


@cache
def _editable() -> set[str]:
    """Top-level packages that `pip install --editable` points to."""
    found = set()
    for distribution in distributions():
        if '"editable": true' in (distribution.read_text("direct_url.json") or ""):
            names = distribution.read_text("top_level.txt") or distribution.name.replace("-", "_")
            found |= set(names.split())
    return found
