"""The names in a module's text: where each stands, and by Python's scoping rules whose it is."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
NOT_RUN = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")  # conditions that are false here
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(eq=False)
class Scope:
    """A region in which names live. `kind` is module, class, function (a lambda too), comprehension, or types: the
    region in which the type parameters of a definition are known."""

    kind: str
    parent: Scope | None = None
    bound: list[str] = field(default_factory=list)  # once per binding
    declared_global: set[str] = field(default_factory=set)

    def owner(self, name: str) -> Scope:
        """The scope in which a name that stands here is looked up; the module for builtins too."""
        scope, inner = self, True
        while scope.parent is not None:
            if name in scope.declared_global:
                return scope.module
            if name in scope.bound and (inner or scope.kind != "class"):
                return scope
            scope, inner = scope.parent, False
        return scope

    @property
    def module(self) -> Scope:
        return self if self.parent is None else self.parent.module

    @property
    def in_function(self) -> bool:
        return self.parent is not None and (self.kind == "function" or self.parent.in_function)


@dataclass(eq=False)
class Use:
    """A name in the text, bound or read."""

    name: str
    node: ast.AST
    scope: Scope
    binds: bool = False
    chain: list[ast.Attribute] = field(default_factory=list)  # of `name.b.c`: the nodes `name.b` and `name.b.c`
    quoted: bool = False  # in an annotation that is text

    @property
    def owner(self) -> Scope:
        return self.scope.owner(self.name)


@dataclass(eq=False)
class ImportStatement:
    node: ast.Import | ast.ImportFrom
    scope: Scope
    in_try: bool
    not_run: bool  # under `if TYPE_CHECKING`, or in what only a program runs
    plain: bool  # a statement of the module itself, under no condition


@dataclass(eq=False)
class Annotation:
    """An annotation that is text, or becomes it: of a module with `from __future__ import annotations`."""

    node: ast.expr
    content: ast.expr
    lazy: bool


class Names(ast.NodeVisitor):
    """All uses, import statements, `global` statements and textual annotations of a module."""

    def __init__(self, tree: ast.Module):
        self.scope = self.module = Scope("module", bound=list(_bound(_own_nodes(tree.body))))
        self.uses: list[Use] = []
        self.imports: list[ImportStatement] = []
        self.globals: list[ast.Global] = []
        self.annotations: list[Annotation] = []
        self._in_try = self._not_run = self._quoted = False
        self._top = {id(node) for node in tree.body}
        self._lazy = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
        self.visit(tree)

    def visit_Name(self, node: ast.Name) -> None:
        binds = not isinstance(node.ctx, ast.Load)
        self.uses.append(Use(node.id, node, self.scope, binds, quoted=self._quoted))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain: list[ast.Attribute] = []
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            chain.insert(0, value)
            value = value.value
        self.visit(value)
        if isinstance(value, ast.Name):
            self.uses[-1].chain = chain

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        plain = id(node) in self._top
        self.imports.append(ImportStatement(node, self.scope, self._in_try, self._not_run, plain))

    visit_ImportFrom = visit_Import

    def visit_Global(self, node: ast.Global) -> None:
        self.globals.append(node)

    def visit_Try(self, node: ast.Try) -> None:
        before, self._in_try = self._in_try, True
        self.generic_visit(node)
        self._in_try = before

    visit_TryStar = visit_Try

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        before = self._not_run
        self._not_run |= ast.unparse(node.test) in NOT_RUN
        self._each(node.body)
        self._not_run = before
        self._each(node.orelse)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.uses.append(Use(node.name, node, self.scope, binds=True))
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.uses.append(Use(node.name, node, self.scope, binds=True))
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self.uses.append(Use(node.rest, node, self.scope, binds=True))
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.uses.append(Use(node.name, node, self.scope, binds=True))
        self._each([*node.decorator_list, *_defaults(node.args)])
        self._enter("types", _type_parameters(node))
        for argument in _arguments(node.args):
            self._annotation(argument.annotation)
        self._annotation(node.returns)
        self._function([argument.arg for argument in _arguments(node.args)], node.body)
        self._leave()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._each(_defaults(node.args))
        self._function([argument.arg for argument in _arguments(node.args)], [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.uses.append(Use(node.name, node, self.scope, binds=True))
        self._each(node.decorator_list)
        self._enter("types", _type_parameters(node))
        self._each([*node.bases, *node.keywords])
        own = _own_nodes(node.body)
        self.scope = Scope("class", self.scope, list(_bound(own)), _declared(own, ast.Global))
        self._each(node.body)
        self._leave()
        self._leave()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self._annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)

    def generic_visit(self, node: ast.AST) -> None:
        if not isinstance(node, COMPREHENSIONS):
            return super().generic_visit(node)
        first, *others = node.generators
        self.visit(first.iter)
        self._enter("comprehension", [name for part in node.generators for name in _bound(_own_nodes([part.target]))])
        self._each([first.target, *first.ifs, *others])
        self._each([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self._leave()

    def _each(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _function(self, arguments: list[str], body: list[ast.AST]) -> None:
        own = _own_nodes(body)
        outer = _declared(own, ast.Global) | _declared(own, ast.Nonlocal)
        self._enter("function", [name for name in [*arguments, *_bound(own)] if name not in outer])
        self.scope.declared_global = _declared(own, ast.Global)
        self._each(body)
        self._leave()

    def _enter(self, kind: str, bound: list[str]) -> None:
        self.scope = Scope(kind, self.scope, bound)

    def _leave(self) -> None:
        self.scope = self.scope.parent

    def _annotation(self, node: ast.expr | None) -> None:
        if node is None:
            return
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if not (self._lazy or is_text):
            return self.visit(node)
        content = node
        if is_text:
            try:
                content = ast.parse(node.value, mode="eval").body
            except SyntaxError:  # text for a reader
                return
        self.annotations.append(Annotation(node, content, self._lazy))
        self._quoted = True
        self.visit(content)
        self._quoted = False


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    every = [*arguments.posonlyargs, *arguments.args, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [argument for argument in every if argument is not None]


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(one for one in arguments.kw_defaults if one is not None)]


def _type_parameters(node: Definition) -> list[str]:
    return [parameter.name for parameter in getattr(node, "type_params", [])]


def _declared(nodes: Iterable[ast.AST], kind: type[ast.Global | ast.Nonlocal]) -> set[str]:
    return {name for node in nodes if isinstance(node, kind) for name in node.names}


def _bound(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Names that nodes of one scope bind in it, once per binding."""
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or (alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name)
        elif isinstance(node, Definition) or (
            isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name
        ):
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


def _own_nodes(body: Iterable[ast.AST]) -> list[ast.AST]:
    """The nodes of the same scope. Of a comprehension only what `:=` assigns belongs to it."""
    found, waiting = [], list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, COMPREHENSIONS):
            waiting += (inner.target for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))
            continue
        found.append(node)
        if isinstance(node, ast.ClassDef):
            waiting += [*node.decorator_list, *node.bases, *node.keywords]
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += [*getattr(node, "decorator_list", []), *_defaults(node.args)]
        else:
            waiting += ast.iter_child_nodes(node)
    return found
