"""What all commands share: a parser whose errors are one line, common options, tables on the terminal."""

import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jsonargparse import ArgumentParser, Namespace
from jsonargparse._actions import _ActionConfigLoad

from lightning_dar.checkpoint.load import WhichWeights, which_weights
from lightning_dar.errors import DataError, UsageError
from lightning_dar.residual import load_plugins
from lightning_dar.run.explain import check_configs, explain, with_packaged_configs

if TYPE_CHECKING:
    from lightning_dar.checkpoint.load import Checkpoint


class OneLine:
    """Mixin: config files are checked first; what is wrong is a UsageError of one line."""

    asked: Sequence[str] = ()
    """The command line."""

    def parse_args(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Namespace:
        args = with_packaged_configs(sys.argv[1:] if args is None else args)
        self.asked = self.asked or [str(arg) for arg in args]  # as the user wrote it, before settings are added
        check_configs(self.asked)
        return _at_home(super().parse_args(args, *rest, **options))

    def parse_object(self, *args: Any, **options: Any) -> Namespace:
        return _at_home(super().parse_object(*args, **options))

    def validate(self, namespace: Namespace, *rest: Any, **options: Any) -> None:
        """Overrides jsonargparse, which takes null for any option."""
        super().validate(namespace, *rest, **options)
        for action in self._actions:
            if namespace.get(action.dest, ()) is not None or action.default is None:
                continue
            if isinstance(action, _ActionConfigLoad):  # a section
                raise TypeError(f'Parser key "{action.dest}": null, where its options belong, such as {{key: value}}')
            if hasattr(action, "_check_type"):
                self._check_value_key(action, None, action.dest, namespace)

    def error(self, message: str, ex: Exception | None = None) -> None:
        for known in (ex, getattr(ex, "__cause__", None)):
            if isinstance(known, UsageError | DataError):
                raise known
        if not self.exit_on_error:  # of one class among several that are tried: the parser that tries them reports it
            super().error(message, ex)
        raise UsageError(f"{explain(message, _options(self), self.asked)} (--help lists the options)") from ex


def _at_home(settings: Any) -> Any:
    """The same, with the user's home in place of `~/` at the beginning of any but a prompt: shells leave it after
    `--option=`, and Lightning expands it in some places only."""
    if isinstance(settings, Namespace | dict):
        inner = settings.__dict__ if isinstance(settings, Namespace) else settings
        inner.update({key: value if key == "prompt" else _at_home(value) for key, value in inner.items()})
    elif isinstance(settings, list):
        settings[:] = map(_at_home, settings)
    elif type(settings) is str and settings.startswith("~/"):
        return os.path.expanduser(settings)
    return settings


def _options(parser: ArgumentParser) -> Iterator[str]:
    """The option strings of a parser and of the subcommand that its command line names."""
    yield from parser._option_string_actions
    subcommands = getattr(parser, "_subcommands_action", None)
    for name, subparser in subcommands.choices.items() if subcommands else ():
        if name in parser.asked:
            yield from subparser._option_string_actions


class PlainParser(OneLine, ArgumentParser):
    """The parser of a command without a trainer."""


def add_plugins(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--plugins",
        type=str | list[str],
        default=[],
        help="Module, or list of modules, that register residual strategies, such as my_package.my_module.",
    )


def add_device(parser: ArgumentParser) -> None:
    """What `find_device` takes."""
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, mps; auto takes the fastest there is.")


def find_device(name: str) -> torch.device:
    """The device of this name; `auto` is the fastest there is. Raises UsageError for one that cannot be used here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"--device {name}: not usable here ({str(error).splitlines()[0]})") from error


def add_weights(parser: ArgumentParser) -> None:
    """What `open_checkpoint` takes as `weights`."""
    parser.add_argument(
        "--weights",
        type=WhichWeights | None,
        default=None,
        help="Of a run that averaged its weights, which ones: averaged, as by default, or current.",
    )


def say_weights(checkpoint: "Checkpoint") -> None:
    """Prints, on stderr, which weights are taken where the checkpoint holds two sets."""
    if checkpoint.weights is not None:
        print(which_weights(checkpoint.path, checkpoint.weights, "--weights "), file=sys.stderr)


def use_plugins(plugins: str | list[str]) -> None:
    """Imports what `--plugins` names. Raises UsageError naming a module that cannot be imported."""
    load_plugins([plugins] if isinstance(plugins, str) else plugins)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table for the terminal."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (head, *rows)]
    return "\n".join("  ".join(cells).rstrip() for cells in lines)
