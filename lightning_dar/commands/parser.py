"""What the parsers of all subcommands share."""

import re

from jsonargparse import ArgumentParser

from lightning_dar.errors import DataError, UsageError
from lightning_dar.residual import load_plugins


class OneLine:
    """Mixin: says what is wrong in one line, and where the options are described."""

    def error(self, message: str, ex: Exception | None = None) -> None:
        if isinstance(ex, UsageError | DataError):
            raise ex
        self.exit(2, f"error: {_shorten(' '.join(message.split()))} (--help lists the options)\n")


def _shorten(line: str) -> str:
    """`option=value: must be int or null`, where the parser says only that a value has another type, or is none of
    those that are possible."""
    key = re.match(r'Parser key "([^"]+)"', line)
    value = re.search(r"(?:Given value|Got value): (.*)$", line)
    expected = re.findall(r"Expected an? (?:<class '(\w+)'>|typing\.Literal\[([^\]]*)\])", line)
    if not (key and value and expected):
        return line
    names = [name for kind, choices in expected for name in (kind or choices.replace("'", "")).split(", ")]
    kinds = dict.fromkeys("null" if name == "NoneType" else name for name in names)
    return f"{key[1]}={value[1]}: must be {' or '.join(kinds)}"


class PlainParser(OneLine, ArgumentParser):
    """Of a command without a trainer."""


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


def use_plugins(plugins: str | list[str]) -> None:
    """Imports what `--plugins` names. Raises UsageError naming a module that cannot be imported."""
    load_plugins([plugins] if isinstance(plugins, str) else plugins)
