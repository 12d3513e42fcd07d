"""Strategies by name: the shipped ones, what a plugin module registers, and what an installed package offers."""

import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from lightning_dar.errors import UsageError
from lightning_dar.named import not_found
from lightning_dar.named import register as register_class
from lightning_dar.ops import DepthRead
from lightning_dar.residual.base import Residual

ENTRY_POINT_GROUP = "lightning_dar.residuals"

WHAT = "residual strategy"
_REGISTRY: dict[str, type[Residual]] = {}


@dataclass(frozen=True, kw_only=True)
class ResidualConfig:
    """Which residual strategy wires the network.

    Args:
        name: a registered name, such as standard, attnres, delta-sublayer or delta-block.
        options: the strategy's own options, such as {num_blocks: 4}; unset ones keep their defaults.
        depth_read: how the depth history is read: auto, naive (the reference: slow, large), fused, two_phase, or fla
            (flash-linear-attention's kernel, CUDA only). They compute the same.
    """

    name: str = "delta-sublayer"
    options: dict[str, Any] = field(default_factory=dict)
    depth_read: DepthRead = "auto"


def register_residual(name: str) -> Callable[[type[Residual]], type[Residual]]:
    """Class decorator: makes a `Residual` available as `--model.residual.name NAME`.

    Raises:
        UsageError: the name is taken by another class, or the class is not a `Residual`.
    """

    def register(cls: type[Residual]) -> type[Residual]:
        register_class(_REGISTRY, name, cls, Residual, WHAT)
        return cls

    return register


def load_plugins(modules: Iterable[str]) -> None:
    """Imports modules that register strategies. Raises UsageError naming a module that cannot be imported."""
    for module in modules:
        try:
            importlib.import_module(module)
        except UsageError:  # what the plugin registers is refused
            raise
        except (Exception, SystemExit) as error:  # whatever its code raises as it is imported
            raise UsageError(
                f"plugin '{module}' cannot be imported ({type(error).__name__}: {error}); give a module path such as "
                "my_package.my_module"
            ) from error


def is_plugin(module: str) -> bool:
    """Whether strategies of this module have to be brought in by name, `--plugins module`."""
    return not module.startswith("lightning_dar.")


def available_residuals() -> list[str]:
    """Every name that `--model.residual.name` takes, installed entry points included."""
    _load_entry_points()
    return list(_REGISTRY)


def residual_class(name: str, plugin: str | None = None) -> type[Residual]:
    """The strategy registered as `name`.

    Args:
        name: the registered name.
        plugin: the module that a checkpoint says registered it, for the error.

    Raises:
        UsageError: no such strategy; lists the known ones, the nearest, or the plugin that is missing.
    """
    if name not in _REGISTRY:
        _load_entry_points()
    if name in _REGISTRY:
        return _REGISTRY[name]
    plugin = plugin if plugin is not None and is_plugin(plugin) else None
    raise not_found(_REGISTRY, name, WHAT, "model.residual.name", plugin)


def _load_entry_points() -> None:
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        if entry_point.name not in _REGISTRY:
            try:
                loaded = entry_point.load()
            except Exception as error:  # whatever the package raises as it is imported
                raise UsageError(
                    f"residual strategy '{entry_point.name}': {entry_point.value} cannot be loaded ({error})"
                ) from error
            if inspect.isclass(loaded):
                register_residual(entry_point.name)(loaded)
