"""Building a strategy by name, its options checked against the types of its own signature."""

from dataclasses import replace
from typing import Any

from lightning_dar.ops import require_depth_read
from lightning_dar.options import options_of
from lightning_dar.options import with_defaults as defaults_of
from lightning_dar.residual.base import Residual, Shape
from lightning_dar.residual.registry import ResidualConfig, residual_class


def build_residual(config: ResidualConfig, shape: Shape, plugin: str | None = None) -> Residual:
    """The strategy with its options checked against its own signature; parameters are not initialised yet.

    Raises:
        UsageError: unknown name, unknown option, an option of the wrong type or range, or a depth_read that cannot
            run here.
    """
    cls = residual_class(config.name, plugin)
    require_depth_read(config.depth_read)
    return cls(replace(shape, depth_read=config.depth_read), **checked_options(config, cls))


def with_defaults(config: ResidualConfig, cls: type[Residual]) -> ResidualConfig:
    """The same strategy with every option spelled out, so that a later default does not change it."""
    return replace(config, options=defaults_of(cls, checked_options(config, cls)))


def checked_options(config: ResidualConfig, cls: type[Residual]) -> dict[str, Any]:
    """The given options as their declared types. Raises UsageError for an unknown, missing or mistyped one."""
    return options_of(cls, config.options, "model.residual.options", f"strategy '{config.name}'", {"shape"})
