"""Classes that are chosen by name: what registering one and asking for one have in common."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from lightning_dar.errors import UsageError


def register(classes: dict[str, type], name: str, cls: Any, base: type, what: str) -> None:
    """Adds a class under its name.

    Args:
        classes: those registered, by name; changed.
        name: of the class. The same class may be registered again, as where its module is loaded twice.
        cls: the class.
        base: what it must be a subclass of.
        what: what the classes are, for errors, such as "residual strategy".

    Raises:
        UsageError: the name is taken by another class, or the class is not a subclass of `base`.
    """
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise UsageError(f"{what} '{name}': {cls!r} is not a subclass of lightning_dar.{base.__name__}")
    known = classes.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise UsageError(f"{what} '{name}' of {cls.__module__} is already registered by {known.__module__}")
    classes[name] = cls


def not_found(
    classes: Mapping[str, type], name: str, what: str, field: str, plugin: str | None = None, hint: str = ""
) -> UsageError:
    """The error for a name that nothing is registered under.

    Args:
        classes: those registered, by name.
        name: what was asked for.
        what: what the classes are, such as "residual strategy".
        field: the option that names one.
        plugin: the module that a checkpoint says registered it.
        hint: what to say where no known name is near.
    """
    if plugin is not None:
        return UsageError(
            f"the checkpoint needs {what} '{name}' of plugin '{plugin}': add --plugins {plugin} "
            f"(in Python, import {plugin} first)"
        )
    if nearest := get_close_matches(name, classes, n=1):
        hint = f" Did you mean '{nearest[0]}'?"
    noun = what.split()[-1]
    return UsageError(f"{field}: unknown {noun} '{name}'; known: {', '.join(classes)}.{hint}")
