"""Options of what is chosen by name, checked against the types of its own signature."""

import inspect
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from lightning_dar.errors import UsageError

EMPTY = inspect.Parameter.empty


def options_of(cls: type, options: Mapping[str, Any], field: str, owner: str, given: set[str]) -> dict[str, Any]:
    """The options as the types that the class declares.

    Args:
        cls: what they are options of: further arguments of its `__init__`.
        options: by name.
        field: where they stand in the config, for errors.
        owner: what the class is called, for errors.
        given: arguments that are no options.

    Raises:
        UsageError: an unknown, missing or mistyped option.
    """
    from jsonargparse import ArgumentError, ArgumentParser  # not needed to open a checkpoint's classes

    parser = ArgumentParser(exit_on_error=False)
    known = parser.add_class_arguments(cls, skip=given, fail_untyped=False)
    for option in options:
        if option not in known:
            takes = f"its options are {', '.join(known)}" if known else "it has none"
            raise UsageError(f"{field}: {owner} has no option '{option}'; {takes}")
    checked = {}
    for option in known:
        kind, required = _declaration(cls, option)
        if option not in options:
            if required:
                raise UsageError(f"{field}: {owner} needs option '{option}'")
            continue
        value = options[option]
        single = ArgumentParser(exit_on_error=False)
        single.add_argument(f"--{option}", type=kind)
        try:
            if value is None and type(None) not in get_args(kind):  # which jsonargparse takes for "not given"
                raise ArgumentError(None, "null")
            checked[option] = single.parse_object({option: value})[option]
        except ArgumentError as error:
            raise UsageError(
                f"{field}.{option}: {owner} takes {inspect.formatannotation(kind)}, not {value!r}"
            ) from error
    return checked


def with_defaults(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with every default spelled out, so that a later default does not change what they say."""
    parameters = inspect.signature(cls).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    return {
        **options,
        **{name: value for name, value in defaults.items() if name not in options and value is not EMPTY},
    }


def _declaration(cls: type, option: str) -> tuple[Any, bool]:
    """The option's type and whether it must be given, where it is defined along the class's bases."""
    base = next(base for base in cls.__mro__ if option in inspect.signature(base.__init__).parameters)
    required = inspect.signature(base.__init__).parameters[option].default is EMPTY
    return get_type_hints(base.__init__).get(option, Any), required
