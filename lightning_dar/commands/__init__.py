"""The subcommands of cli.py. Each is imported only when it runs: converting needs no trainer."""

from importlib import import_module
from types import ModuleType

PLAIN = ("convert", "evaluate", "generate", "inspect", "plan", "study")


def plain_command(name: str) -> ModuleType:
    """The module of a command that needs no trainer; it has `make_parser()` and `run(args)`."""
    return import_module(f"lightning_dar.commands.{name}")
