"""Building a strategy by name, its options checked against the types of its own signature."""

import inspect
from dataclasses import replace
from typing import Any, get_args, get_type_hints

from lightning_dar.errors import UsageError
from lightning_dar.ops import require_depth_read
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
    options = checked_options(config, cls)
    for option, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty:
            options.setdefault(option, parameter.default)
    return replace(config, options=options)


def checked_options(config: ResidualConfig, cls: type[Residual]) -> dict[str, Any]:
    """The given options as their declared types. Raises UsageError for an unknown, missing or mistyped one."""
    from jsonargparse import ArgumentError, ArgumentParser  # not needed to open a checkpoint's classes

    parser = ArgumentParser(exit_on_error=False)
    known = parser.add_class_arguments(cls, skip={"shape"}, fail_untyped=False)
    for option in config.options:
        if option not in known:
            takes = f"its options are {', '.join(known)}" if known else "it has none"
            raise UsageError(f"model.residual.options: strategy '{config.name}' has no option '{option}'; {takes}")
    checked = {}
    for option in known:
        kind, required = _declaration(cls, option)
        if option not in config.options:
            if required:
                raise UsageError(f"model.residual.options: strategy '{config.name}' needs option '{option}'")
            continue
        value = config.options[option]
        single = ArgumentParser(exit_on_error=False)
        single.add_argument(f"--{option}", type=kind)
        try:
            if value is None and type(None) not in get_args(kind):  # which jsonargparse takes for "not given"
                raise ArgumentError(None, "null")
            checked[option] = single.parse_object({option: value})[option]
        except ArgumentError as error:
            raise UsageError(
                f"model.residual.options.{option}: strategy '{config.name}' takes "
                f"{inspect.formatannotation(kind)}, not {value!r}"
            ) from error
    return checked


def _declaration(cls: type[Residual], option: str) -> tuple[Any, bool]:
    """The option's type and whether it must be given, where it is defined along the class's bases."""
    base = next(base for base in cls.__mro__ if option in inspect.signature(base.__init__).parameters)
    required = inspect.signature(base.__init__).parameters[option].default is inspect.Parameter.empty
    return get_type_hints(base.__init__).get(option, Any), required
