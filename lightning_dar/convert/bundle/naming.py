"""The order of modules in the one file, and names that do not collide in it."""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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


BY_NAME = {"globals", "eval", "exec", "vars"}  # find variables by names that are values


@dataclass
class Naming:
    """Names of variables.

    Attributes:
        names: the name of each in the one file.
        attributes: id of a node such as `helper.half` -> what it stands for.
    """

    modules: Modules
    names: dict[Variable, str] = field(default_factory=dict)
    attributes: dict[int, Variable] = field(default_factory=dict)

    def variable(self, module: Module, name: str) -> Variable | None:
        """What a name of the module itself stands for in the one file; None for builtins and modules.

        An imported name that is bound once, under the name that it has where it is defined, is the same variable.
        """
        bindings = module.bound.get(name, [])
        if all(isinstance(one, Imported) and one.kind == "idle" for one in bindings):
            return None
        found = self.modules.definition(module.name, name)
        if isinstance(found, ModuleName):
            return None
        return found if found.name == name else Variable(module.name, name)


def name_all(modules: Modules, order: list[Module], kept: set[Variable]) -> Naming:
    """Names every variable; those of `kept` keep theirs.

    Raises:
        UsageError: variables that must keep the same name, or a module used as a value.
    """
    naming, apart, taken_for_granted = Naming(modules), set(), {"__all__"}
    homes: dict[Variable, Module] = {}
    kept = set(kept)
    for module in order:
        for name in module.bound:
            variable = naming.variable(module, name)
            if variable is not None:
                homes.setdefault(variable, module)
        for use in module.names.uses:
            found = attribute_of_module(modules, module, use)
            if found is not None:
                depth, variable = found
                naming.attributes[id(use.chain[depth - 1])] = variable
                homes.setdefault(variable, module)
                if use.scope.owner(variable.name).parent is not None:
                    apart.add(variable)
            elif use.owner is module.names.module and use.name not in module.bound:
                taken_for_granted.add(use.name)
        apart |= set(_hidden_in_functions(modules, module))
        fixed = set(_fixed(module))
        taken_for_granted |= {name for name in fixed if name not in module.bound and hasattr(builtins, name)}
        kept |= {Variable(module.name, name) for name in fixed if name in module.bound} & set(homes)
    words = {word for module in order for word in re.findall(r"\w+", module.source.decode())}
    used: dict[str, Variable] = {}
    for variable in sorted(homes, key=lambda one: one not in kept):
        name = variable.name
        if name in used or name in taken_for_granted or variable in apart:
            if variable in kept:
                other = used.get(name, Variable("Python", name)).owner
                raise UsageError(
                    f"--format hf: '{name}' of {variable.owner} and of {other} cannot travel together, for the former "
                    "is also found by its name in a text or a class body; rename it"
                )
            name = next(one for one in _others(name, homes[variable].name) if one not in used and one not in words)
        naming.names[variable], used[name] = name, variable
    return naming


def _hidden_in_functions(modules: Modules, module: Module) -> Iterator[Variable]:
    """Variables that a function imports where its own names hide them."""
    for imported in module.imported:
        scope = imported.statement.scope
        if imported.kind != "travels" or not scope.in_function:
            continue
        found = definition_of(modules, module, imported)
        if isinstance(found, Variable):
            own = imported.local == found.name and scope.bound.count(imported.local) == 1
            if (scope.parent if own else scope).owner(found.name).parent is not None:
                yield found


def _fixed(module: Module) -> Iterable[str]:
    """Names of the module that cannot be changed where they stand, or that more than the text may ask for."""
    for use in module.names.uses:
        if use.quoted:
            continue
        if use.scope.kind == "class" and use.owner is use.scope and not use.binds:
            yield use.name  # the module's until the class binds it
        if use.owner is not module.names.module:
            continue
        if module.place(use) is None:
            yield use.name
        if (use.name in BY_NAME and use.name not in module.bound) or _is_sys_modules(module, use):
            yield from module.bound.keys() - {"__all__"}


def _is_sys_modules(module: Module, use: Use) -> bool:
    values = {one.value for one in module.bound.get(use.name, []) if isinstance(one, Imported)}
    return "from sys import modules" in values or (
        "import sys" in values and bool(use.chain) and use.chain[0].attr == "modules"
    )


def _others(name: str, module: str) -> Iterator[str]:
    private = "_" if name.startswith("_") else ""
    first = f"{private}{module.rpartition('.')[2].lstrip('_')}_{name.lstrip('_')}"
    yield first
    number = 2
    while True:
        yield f"{first}_{number}"
        number += 1
