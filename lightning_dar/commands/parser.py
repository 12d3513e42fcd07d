"""What the parsers of all subcommands share."""

from jsonargparse import ArgumentParser

from lightning_dar.errors import DataError, UsageError
from lightning_dar.residual import load_plugins


class OneLine:
    """Mixin: says what is wrong in one line, and where the options are described."""

    def error(self, message: str, ex: Exception | None = None) -> None:
        if isinstance(ex, UsageError | DataError):
            raise ex
        line = " ".join(message.split())
        self.exit(2, f"error: {line} (--help lists the options)\n")


class PlainParser(OneLine, ArgumentParser):
    """Of a command without a trainer."""


def add_plugins(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--plugins",
        type=str | list[str],
        default=[],
        help="Module, or list of modules, that register residual strategies, such as my_package.my_module.",
    )


def use_plugins(plugins: str | list[str]) -> None:
    """Imports what `--plugins` names. Raises UsageError naming a module that cannot be imported."""
    load_plugins([plugins] if isinstance(plugins, str) else plugins)
