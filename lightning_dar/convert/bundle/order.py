"""Which modules travel, each after those that it needs."""

import ast
from collections.abc import Iterator

from lightning_dar.convert.bundle.modules import Imported, Module, ModuleName, Modules, Variable
from lightning_dar.convert.bundle.scopes import Scope, Use
from lightning_dar.errors import UsageError


def in_order(modules: Modules, entry: str) -> list[Module]:
    """`entry` and all that it needs, in the order in which Python would run them.

    What a function imports comes after the module that the function is in, for the two may need each other. A package's
    `__init__.py` travels only where it defines a name that is used: what it hands on is taken from where it is defined.
    """
    done: dict[str, Module] = {}
    begun = set()

    def visit(name: str) -> None:
        if name in begun:
            return
        begun.add(name)
        module = modules[name]
        later = []
        for needed, in_function in _needed(modules, module):
            if in_function:
                later.append(needed)
            else:
                visit(needed)
        done[name] = module
        for needed in later:
            visit(needed)

    visit(entry)
    return list(done.values())


def _needed(modules: Modules, module: Module) -> Iterator[tuple[str, bool]]:
    for imported in [*module.imported, *module.stars]:
        if imported.kind == "travels":
            for name in _loaded(modules, module, imported):
                yield name, imported.statement.scope.in_function
    for use in module.names.uses:
        found = attribute_of_module(modules, module, use)
        if found is not None and found[1].travels:
            yield found[1].owner, use.scope.in_function


def _loaded(modules: Modules, module: Module, imported: Imported) -> Iterator[str]:
    if not modules[imported.loads].is_package:
        yield imported.loads
    if imported.star or imported.name is None:
        return
    found = definition_of(modules, module, imported)
    if isinstance(found, Variable) and found.travels:
        yield found.owner
    elif isinstance(found, ModuleName) and not modules[found.module].is_package:
        yield found.module


def definition_of(modules: Modules, module: Module, imported: Imported) -> Variable | ModuleName:
    """What an import of a travelling module binds. Raises UsageError for a name that its text does not define."""
    if imported.name is None:
        return ModuleName(imported.module)
    found = modules.definition(imported.module, imported.name.partition(".")[0])
    if found is None:
        raise UsageError(
            f"--format hf: {module.line(imported.statement.node)} imports '{imported.name}' of '{imported.module}', "
            "whose text does not define it; what is defined while a program runs cannot travel"
        )
    return found


def attribute_of_module(modules: Modules, module: Module, use: Use) -> tuple[int, Variable] | None:
    """How many attributes of a use such as `helper.sub.half` lead to a variable, and to which, where `helper` is a
    module that travels.

    Raises:
        UsageError: a use of the module itself, which has no place in one file.
    """
    value = module_value(modules, module, use.owner, use.name)
    if value is None:
        return None
    for number, attribute in enumerate(use.chain, 1):
        found = modules.definition(value.module, attribute.attr)
        if found is None:
            break
        if isinstance(found, Variable):
            if not isinstance(attribute.ctx, ast.Load):
                break
            return number, found
        value = found
    if use.quoted:  # an annotation for readers
        return None
    raise UsageError(
        f"--format hf: {module.line(use.node)} uses the module '{value.module}' in a way that cannot travel; use "
        f"names that its text defines, as {use.name}.NAME, or import them"
    )


def module_value(modules: Modules, module: Module, owner: Scope, name: str) -> ModuleName | None:
    """The travelling module that a name stands for. Raises UsageError where it may stand for something else too."""
    if owner is module.names.module:
        found = modules.definition(module.name, name) if name in module.bound else None
        return found if isinstance(found, ModuleName) else None
    here = [one for one in module.imported if one.owner is owner and one.local == name and one.kind == "travels"]
    found = [definition_of(modules, module, one) for one in here]
    if not any(isinstance(one, ModuleName) for one in found):
        return None
    if len(set(found)) > 1 or len(found) < owner.bound.count(name):
        raise UsageError(
            f"--format hf: {module.line(here[0].statement.node)}: '{name}' may be one of several modules, which cannot "
            "travel; import the names that are needed of them"
        )
    return found[0]
