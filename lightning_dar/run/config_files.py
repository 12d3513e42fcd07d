"""Config files, read before jsonargparse does, so that what is wrong with one is said with its name and line."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from lightning_dar.errors import UsageError

FLAGS = ("--config", "-c")
SECTIONS = ("model", "data", "trainer")
TEXT, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


def check_configs(args: Sequence[str]) -> None:
    """Raises UsageError for a config file of the command line that cannot be read or is no mapping of sections."""
    for path in config_files(args):
        read_config(path)


def config_files(args: Sequence[str]) -> Iterator[str]:
    """The paths given by `--config`; settings given in their place are left out."""
    for number, arg in enumerate(args):
        name, given, value = arg.partition("=")
        if name not in FLAGS:
            continue
        if not given:
            value = args[number + 1] if number + 1 < len(args) else "-"
        if value != "-" and not _is_inline(value):
            yield value


def read_config(path: str) -> dict[str, Any]:
    """The content of a config file. Raises UsageError naming file and line."""
    if not path:
        raise UsageError("--config: no file is named")
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: cannot be read ({error})") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = text.split("\n")[error.problem_mark.line]
        reason = "a tab; YAML is indented by spaces" if line.lstrip(" ").startswith("\t") else error.problem
        raise UsageError(f"--config {path}, line {error.problem_mark.line + 1}: {reason}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number out of range
        raise UsageError(f"--config {path}: cannot be read ({error})") from error
    if not isinstance(content, dict):
        what = "nothing is in it" if content is None else "a list" if isinstance(content, list) else "a single value"
        raise UsageError(f"--config {path}, line 1: {what}, where sections such as model, data and trainer belong")
    for name, section in node.value:
        if name.value in SECTIONS and not isinstance(section, yaml.MappingNode):
            line = name.start_mark.line + 1
            raise UsageError(f"--config {path}, line {line}: '{name.value}' must hold options, such as {{key: value}}")
    for line, problem in _problems(node):
        raise UsageError(f"--config {path}, line {line}: {problem}")
    return content


def place_of(key: str, args: Sequence[str]) -> str | None:
    """`FILE, line N`: where the last config file of the command line that has an option sets it."""
    for path in reversed(list(config_files(args))):
        node: Any = yaml.compose(Path(path).expanduser().read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        line = None
        for part in key.split("."):
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            found = [(name, value) for name, value in pairs if name.value == part]
            if not found:
                line = None
                break
            (name, node) = found[-1]
            line = name.start_mark.line + 1
        if line is not None:
            return f"{path}, line {line}"
    return None


def _is_inline(value: str) -> bool:
    try:
        return isinstance(yaml.safe_load(value), dict)
    except (yaml.YAMLError, ValueError):
        return value.lstrip().startswith("{")


def _problems(node: yaml.Node, above: tuple[yaml.Node, ...] = (), path: str = "") -> Iterator[tuple[int, str]]:
    """Lines of a mapping, and what YAML takes there without a word: keys that stand more than once, of which it takes
    the last, keys that are no text, and aliases of what they stand in."""
    if node in above:
        yield node.start_mark.line + 1, "an alias of what it stands in"
        return
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _problems(child, above, path)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag not in (TEXT, MERGE) and not path.startswith(".trainer."):  # a callback's may be
                yield line, f"YAML takes the key {key.value} for no text; put it in quotes"
            if key.value in seen:
                yield line, f"'{key.value}' a second time; the first one would be dropped"
            if key.tag != MERGE:
                seen.add(key.value)
            yield from _problems(value, above, f"{path}.{key.value}")
