"""The kinds of MLP by name: what `model.mlp.kind` takes."""

from collections.abc import Callable
from typing import TypeVar

from lightning_dar.model.sublayer import Sublayer
from lightning_dar.named import not_found
from lightning_dar.named import register as register_class

Class = TypeVar("Class", bound=type[Sublayer])

WHAT = "MLP kind"
_KINDS: dict[str, type[Sublayer]] = {}


def register_mlp(kind: str) -> Callable[[Class], Class]:
    """Class decorator: makes a `Sublayer` available as `--model.mlp.kind KIND`. Its `__init__` takes the sizes, then
    keyword-only `pre_norm` and its own options.

    Raises:
        UsageError: the name is taken by another class, or the class is not a `Sublayer`.
    """

    def register(cls: Class) -> Class:
        register_class(_KINDS, kind, cls, Sublayer, WHAT)
        return cls

    return register


def available_mlps() -> list[str]:
    return list(_KINDS)


def mlp_class(kind: str, plugin: str | None = None) -> type[Sublayer]:
    """The class registered as `kind`. Raises UsageError where there is none, with the known ones, or with the module
    that a checkpoint says registered it."""
    if kind in _KINDS:
        return _KINDS[kind]
    raise not_found(_KINDS, kind, WHAT, "model.mlp.kind", plugin, " A plugin's kind needs --plugins MODULE.")
