"""What is wrong with the settings that a user gives, in one line: option, file and line, what would be right.

Config files are checked before jsonargparse reads them (`check_configs`); its own messages, which list all that was
tried, are brought down to one line (`explain`).
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from lightning_dar.errors import UsageError

MOST_SHOWN = 15  # options of a section
KEY = re.compile(r'Parser key "([^"]+)"(?: element \d+)?:\s*(.*)', re.DOTALL)
PROBLEM = re.compile(r"Problem with given class_path '([^']+)':\n +(.+?)(?=\n\s*- |\n\s*Given value|\Z)", re.DOTALL)
IN_GROUP = re.compile(r"Group '([^']+)' does not accept option '([^']+)'")
NOT_ACCEPTED = re.compile(r"(?:Subcommand '(\w+)' does not accept option|Option) '([^']+)'(?: is not accepted)?")
VALUE = re.compile(r"(?:Given value|Got value): (.*?)(?=\s*Subclass types expect|\Z)", re.DOTALL)
KIND = re.compile(r"Expected (?:an? )?(?:<class '([\w.]+)'>|typing\.Literal\[([^\]]*)\])|Not a valid subclass of (\w+)")
PACKAGE = Path(__file__).parents[1]
FLAGS = ("--config", "-c")
SECTIONS = ("model", "data", "trainer")
TEXT, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


def check_configs(args: Sequence[str]) -> None:
    """Raises UsageError for a config file of the command line that cannot be read or is no mapping of sections."""
    for path in config_files(args):
        read_config(path)


def config_files(args: Sequence[str]) -> Iterator[str]:
    """The paths given by `--config`; settings given in their place are left out."""
    for number, start in _config_values(args):
        yield args[number][start:]


def with_packaged_configs(args: Sequence[str]) -> list[str]:
    """The command line, with configs that are not there taken from those that are installed with the package."""
    args = list(args)
    for number, start in _config_values(args):
        args[number] = args[number][:start] + packaged(args[number][start:])
    return args


def packaged(path: str) -> str:
    """A config's path: as it is, unless nothing is there and the installed package has a config of this path."""
    return path if Path(path).expanduser().exists() or not (PACKAGE / path).is_file() else str(PACKAGE / path)


def _config_values(args: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where `--config` names a file: the number of the argument, and where in it the path begins."""
    for number, arg in enumerate(args):
        name, given, value = arg.partition("=")
        if name not in FLAGS:
            continue
        place = (number, len(name) + 1) if given else (number + 1, 0)
        if not given:
            value = args[number + 1] if number + 1 < len(args) else "-"
        if value != "-" and not _is_inline(value):
            yield place


def read_config(path: str) -> dict[str, Any]:
    """The content of a config file. Raises UsageError naming file and line."""
    if not path:
        raise UsageError("--config: no file is named")
    try:
        text = Path(packaged(path)).expanduser().read_text(encoding="utf-8")
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


def explain(message: str, options: Iterable[str], args: Sequence[str]) -> str:
    """
    Args:
        message: the parser's.
        options: every option string of the parser, such as `--model.hidden_size`.
        args: the command line.
    """
    known = [option.removeprefix("--") for option in options]
    if message.startswith("unrecognized arguments: "):
        unknown = message.removeprefix("unrecognized arguments: ")
        if not unknown.startswith("-"):
            return f"unexpected argument '{unknown.partition(' -')[0]}'"
        word = re.split("[ =]", unknown)[0]
        return f"{word}: no such option{nearest(word.removeprefix('--'), known, '--{}')}"
    if refused := IN_GROUP.match(message):
        key = f"{refused[1]}.{refused[2]}"
        return f"{_where(key, args)}{key}: no such option{nearest(key, known)}"
    if refused := NOT_ACCEPTED.match(message):
        command, key = refused[1] or "cli.py", refused[2]
        if not refused[1] and key in known:
            return f"{_where(key, args)}{key}: an option of a subcommand; write --config after it"
        return f"{_where(key, args)}{key}: {command} has no such option{nearest(key, known)}"
    if found := KEY.match(message):
        key, line = found[1], _reason(found[1], found[2])
        given = any(arg.partition("=")[0].rstrip("+") == f"--{key}" for arg in args)
        return line if given else f"{_where(key, args)}{line}"
    if choice := re.match(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from (.*)\)", message):
        choices = re.findall(r"[\w.-]+", choice[3])
        return f"{choice[1]}: '{choice[2]}' is none of {', '.join(choices)}{nearest(choice[2], choices)}"
    return _joined(message)


def nearest(word: str, known: Iterable[str], form: str = "{}") -> str:
    """`; did you mean X?`, the options of the section that there are, or nothing. A name without its section finds the
    option too."""
    known = list(dict.fromkeys(known))
    section, _, name = word.rpartition(".")
    names = {option.rpartition(".")[2]: option for option in known if option.rpartition(".")[0] == section}
    same_end = [option for option in known if option.endswith(f".{word}")]
    found = same_end[:1] or [names[near] for near in get_close_matches(name, names, n=1, cutoff=0.7)]
    if not names:  # the section itself is misspelt
        found = found or get_close_matches(word, known, n=1, cutoff=0.7)
    if found:
        return f"; did you mean {form.format(found[0])}?"
    return f"; {section} has {', '.join(names)}" if section and 0 < len(names) <= MOST_SHOWN else ""


def _where(key: str, args: Sequence[str]) -> str:
    place = place_of(key, args)
    return "" if place is None else f"{place}: "


def _reason(key: str, text: str) -> str:
    """What is wrong with the value of an option."""
    inner = KEY.search(text)
    if text.startswith("Unable to load config") and inner:
        if inner[1] != key:
            return _reason(inner[1], inner[2])
        return f"{key}={text.splitlines()[0].removeprefix('Unable to load config ')}: neither settings nor their file"
    if problem := PROBLEM.search(text):
        return f"{key}: {_of_class(problem[1], problem[2])}"
    bases = re.findall(r"[\w.]+\.[A-Z]\w+", text.partition("Errors:")[0])
    if name := re.search(r"Expected a dot import path string: (\S+)", text):
        hint = nearest(name[1], _subclasses(bases))
        return (
            f"{key}={name[1]}: no class is known by this name{hint or '; give its path, such as package.module.Name'}"
        )
    value = VALUE.search(text)
    shown = f"{key}={_joined(value[1]).replace('None', 'null')}" if value else key
    if subclass := re.search(r"Import path does not correspond to a subclass of (\w+)", text):
        return f"{shown}: no {subclass[1]}, or one whose package is not installed"
    if failed := _import_that_fails(value[1] if value else ""):
        return f"{key}: {failed}"
    kinds = _kinds(text)
    if not (value and kinds):
        return f"{key}: {_joined(text)}"
    several = [", ".join(kinds[:-1])] if len(kinds) > 1 else []
    return f"{shown}: must be {' or '.join([*several, kinds[-1]])}{nearest(value[1], kinds)}"


def _import_that_fails(value: str) -> str | None:
    """The first class named by its path in a value whose module raises as it is imported, and what it raised: the
    parser reports that without saying so."""
    for path in re.findall(r"'class_path': '([\w.]+)'", value) or re.findall(
        r"\A[\w.]*[a-zA-Z]\w*\.[a-zA-Z]\w*\Z", value
    ):
        try:
            import_module(path.rpartition(".")[0])
        except (Exception, SystemExit) as error:
            return f"{path} cannot be imported ({type(error).__name__}: {error})"
    return None


def _of_class(class_path: str, text: str) -> str:
    name = class_path.rpartition(".")[2]
    if missing := re.search(r"module '([\w.]+)' has no attribute '(\w+)'", text):
        return f"{missing[1]} has no '{missing[2]}'{nearest(missing[2], _names(missing[1]))}"
    if refused := NOT_ACCEPTED.match(text):
        return f"{name} has no option '{refused[2]}'{nearest(refused[2], _parameters(class_path))}"
    if required := re.match(r"the following arguments are required: (.*)", text):
        return f"{name} needs {required[1]}"
    if found := KEY.match(text):
        return f"{name}: {_reason(found[1], found[2])}"
    return f"{class_path}: {_joined(text)}"


def _kinds(text: str) -> list[str]:
    """What a value may be: types and single values."""
    kinds: dict[str, None] = {}
    for literals in re.findall(r"typing\.Literal\[([^\]]*)\]", text):
        kinds |= dict.fromkeys(literals.replace("'", "").split(", "))
    counted = any(value.isdecimal() for value in kinds)  # integers are then listed one by one
    for name, _, subclass in KIND.findall(text):
        kind = "null" if name == "NoneType" else subclass or name.rpartition(".")[2]
        if kind and kind != "Iterable" and not (counted and kind == "int"):
            kinds[kind] = None
    return list(kinds)


def _names(module: str) -> list[str]:
    return [name for name in dir(import_module(module)) if not name.startswith("_")]


def _parameters(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    return [key for cls in getattr(import_module(module), name).__mro__ for key in inspect.signature(cls).parameters]


def _subclasses(bases: Iterable[str]) -> list[str]:
    """The names by which jsonargparse takes the classes below some that are given by path."""
    found: dict[str, Any] = {}
    for path in bases:
        module, _, name = path.rpartition(".")
        waiting = [getattr(import_module(module), name, None)]
        while waiting:
            cls = waiting.pop()
            below = cls.__subclasses__() if isinstance(cls, type) else []
            found |= {cls.__name__: cls for cls in below if not cls.__name__.startswith("_")}
            waiting += below
    return list(found)


def _joined(text: str) -> str:
    return " ".join(text.split())
