"""The kinds of MLP by name: what `model.mlp.kind` takes."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import TypeVar

from lightning_dar.errors import UsageError
from lightning_dar.model.sublayer import Sublayer

Class = TypeVar("Class", bound=type[Sublayer])

_KINDS: dict[str, type[Sublayer]] = {}


def register_mlp(kind: str) -> Callable[[Class], Class]:
    """Class decorator: makes a `Sublayer` available as `--model.mlp.kind KIND`. Its `__init__` takes the sizes, then
    keyword-only `pre_norm` and its own options.

    Raises:
        UsageError: the name is taken by another class, or the class is not a `Sublayer`.
    """

    def register(cls: Class) -> Class:
        if not (isinstance(cls, type) and issubclass(cls, Sublayer)):
            raise UsageError(f"MLP kind '{kind}': {cls!r} is not a subclass of lightning_dar.Sublayer")
        known = _KINDS.get(kind)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise UsageError(f"MLP kind '{kind}' of {cls.__module__} is already registered by {known.__module__}")
        _KINDS[kind] = cls
        return cls

    return register


def available_mlps() -> list[str]:
    return list(_KINDS)


def mlp_class(kind: str, plugin: str | None = None) -> type[Sublayer]:
    """The class registered as `kind`. Raises UsageError where there is none, with the known ones, or with the module
    that a checkpoint says registered it."""
    if kind in _KINDS:
        return _KINDS[kind]
    if plugin is not None:
        raise UsageError(
            f"the checkpoint needs MLP kind '{kind}' of plugin '{plugin}': add --plugins {plugin} "
            f"(in Python, import {plugin} first)"
        )
    nearest = get_close_matches(kind, _KINDS, n=1)
    hint = f" Did you mean '{nearest[0]}'?" if nearest else " A plugin's kind needs --plugins MODULE."
    raise UsageError(f"model.mlp.kind: unknown kind '{kind}'; known: {', '.join(_KINDS)}.{hint}")
