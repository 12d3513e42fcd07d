"""The text of the one file, and what cannot travel in it."""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lightning_dar.convert.bundle.modules import Imported, Module, ModuleName, Modules, Variable
from lightning_dar.convert.bundle.naming import Naming, definition_of, in_order, name_all
from lightning_dar.convert.bundle.scopes import ImportStatement
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


LOOKS_RELATIVE = re.compile(r"^\s*(?:from\s+\.\S+\s+import|import\s+\.\S+\s*$).*", re.MULTILINE)  # transformers' own


@dataclass(frozen=True)
class Bundle:
    """The text, the modules that it is made of, and the packages that it imports outside of `try`."""

    text: str
    modules: list[str]
    packages: set[str]


def bundle(
    entry: str, roots: set[str], exchanged: Mapping[Variable, Variable], kept: set[Variable], trusted: str
) -> Bundle:
    """The module `entry` and all that it needs as one.

    Args:
        entry: the module's name; its names are those of the one file.
        roots: top-level packages that travel even where they are installed.
        exchanged: imports to replace, (module, name) -> (module, name).
        kept: variables that keep their name.
        trusted: the package whose modules are known to travel.

    Raises:
        UsageError: code that cannot travel, by module and line.
    """
    modules = Modules(roots, dict(exchanged))
    order = in_order(modules, entry)
    for module in order:
        if module.name.partition(".")[0] != trusted:
            refuse_what_cannot_travel(module)
    naming = name_all(modules, order, kept)
    imported: set[str] = set()
    parts = []
    for number, module in enumerate(order):
        text = _Text(module, naming, {one.name for one in order[number + 1 :]}, imported).changed()
        parts.append(f"# {'-' * 20} {module.name}\n\n{text.strip()}\n")
    text = "\n\n".join(parts)
    if found := LOOKS_RELATIVE.search(text):
        raise UsageError(
            f"--format hf: the text '{found[0].strip()}' reads like an import of a file, which transformers then looks "
            "for; put a word before it"
        )
    return Bundle(text, [module.name for module in order], _packages(order))


class _Text:
    """The changes of one module's text."""

    def __init__(self, module: Module, naming: Naming, later: set[str], imported: set[str]):
        self.module, self.naming, self.later, self.imported = module, naming, later, imported
        self.changes: dict[tuple[int, int], str] = {}

    def changed(self) -> str:
        for statement in self.module.names.imports:
            self._import(statement)
        for node in self.module.names.globals:
            names = [self._name(name) for name in node.names]
            if names != node.names:
                self.changes[self.module.span(node)] = f"global {', '.join(names)}"
        for use in self.module.names.uses:
            if use.quoted:
                continue
            attribute = next((one for one in use.chain if id(one) in self.naming.attributes), None)
            if attribute is not None:
                name = self.naming.names[self.naming.attributes[id(attribute)]]
                self.changes[self.module.span(attribute)] = name
            elif use.owner is self.module.names.module and self._name(use.name) != use.name:
                self.changes[self.module.place(use)] = self._name(use.name)
        for annotation in self.module.names.annotations:
            text = ast.unparse(_Renamed(self).visit(annotation.content))
            if annotation.lazy or text != ast.unparse(annotation.content):
                self.changes[self.module.span(annotation.node)] = repr(text)
        source = self.module.source
        for (start, end), text in sorted(self.changes.items(), reverse=True):
            source = source[:start] + text.encode() + source[end:]
        return source.decode()

    def _name(self, name: str) -> str:
        variable = self.naming.variable(self.module, name) if name in self.module.bound else None
        return name if variable is None else self.naming.names[variable]

    def _import(self, statement: ImportStatement) -> None:
        every = [*self.module.imported, *self.module.stars]
        here = [one for one in every if one.statement is statement]
        if isinstance(statement.node, ast.ImportFrom) and statement.node.module == "__future__":
            return self._replace(statement, [])
        lines = [line for one in here for line in self._lines(one)]
        unchanged = all(one.kind == "stays" and not one.star for one in here)
        if unchanged and lines == [one.text(one.local) for one in here]:
            return
        self._replace(statement, lines)

    def _lines(self, one: Imported) -> Iterator[str]:
        """The statements in place of one imported name."""
        if one.kind == "idle" or one.name == "*":
            return
        if one.kind == "missing":
            yield f"raise ImportError('{one.loads} was not there where this file was written')"
            return
        of_module = one.owner is self.module.names.module
        local = self._name(one.local) if of_module else one.local
        if one.kind == "stays":
            text = one.text(local)
            if not (one.statement.plain and text in self.imported):
                yield text
            if one.statement.plain:
                self.imported.add(text)
            return
        found = definition_of(self.naming.modules, self.module, one)
        if isinstance(found, ModuleName):
            if of_module and self.naming.variable(self.module, one.local) is not None:
                raise self._refusal(one, f"'{one.local}' may be something else than a module too")
            return
        if found.owner in self.later and not one.statement.scope.in_function and local != self.naming.names[found]:
            raise self._refusal(one, f"'{found.owner}' and '{self.module.name}' import each other")
        _, dot, inner = (one.name or "").partition(".")
        value = f"{self.naming.names[found]}{dot}{inner}"
        if local != value or (one.statement.scope.kind == "class" and not of_module):
            yield f"{local} = {value}"

    def _refusal(self, one: Imported, why: str) -> UsageError:
        return UsageError(
            f"--format hf: {self.module.line(one.statement.node)}: {why}, which cannot travel in one file; import the "
            "names that are needed"
        )

    def _replace(self, statement: ImportStatement, lines: list[str]) -> None:
        """Puts lines in a statement's place; with none of them it goes, with its line where it may."""
        source, (start, end) = self.module.source, self.module.span(statement.node)
        line_start = source.rfind(b"\n", 0, start) + 1
        line_end = (source.find(b"\n", end) + 1) or len(source)
        indent, rest = source[line_start:start], source[end:line_end].strip()
        alone = not indent.strip() and (not rest or rest.startswith(b"#"))
        if not lines and alone and statement.plain:
            self.changes[line_start, line_end] = ""
        elif alone:
            self.changes[start, end] = f"\n{indent.decode()}".join(lines or ["pass"])
        else:
            self.changes[start, end] = "; ".join(lines or ["pass"])


class _Renamed(ast.NodeTransformer):
    """An annotation with the names of the one file."""

    def __init__(self, text: _Text):
        self._text = text
        self._uses = {id(use.node): use for use in text.module.names.uses if use.quoted}

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        variable = self._text.naming.attributes.get(id(node))
        if variable is None:
            value = self.visit(node.value)
            return ast.Attribute(value, node.attr, node.ctx)
        return ast.Name(self._text.naming.names[variable], ast.Load())

    def visit_Name(self, node: ast.Name) -> ast.AST:
        use = self._uses.get(id(node))
        if use is None or use.owner is not self._text.module.names.module:
            return node
        return ast.Name(self._text._name(node.id), ast.Load())


def _packages(order: list[Module]) -> set[str]:
    """Top-level packages that transformers asks for before it runs the file."""
    roots = {
        one.loads.partition(".")[0]
        for module in order
        for one in module.imported
        if one.kind == "stays" and not one.statement.in_try
    }
    return roots - set(sys.stdlib_module_names)
