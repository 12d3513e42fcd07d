"""The package's rooms import downwards only: docs/architecture.md."""

import ast
from pathlib import Path

import pytest

import lightning_dar

PACKAGE = Path(lightning_dar.__file__).parent
FLOORS = (  # from the ground up; rooms of one floor do not import each other
    {"errors", "version"},
    {"named", "options", "files"},
    {"ops"},
    {"residual"},
    {"model"},
    {"text", "charts"},
    {"checkpoint"},
    {"run"},
    {"training"},
    {"diagnostics"},
    {"fit", "generate", "inspect", "plan", "convert", "evaluate"},
    {"study"},  # runs fit, and measures its cells as `plan` counts them
    {"callbacks"},
    {"cli"},
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def room_of(module: str) -> str:
    return module.split(".")[1]


def imports() -> set[tuple[str, str, str]]:
    """(file, its room, the room that it imports), of imports inside functions too."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        if inside.parts[0] == "__init__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module == "lightning_dar":
                names = [f"lightning_dar.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning_dar."):
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith("lightning_dar.")]
            room = inside.parts[0].removesuffix(".py")
            found |= {(str(inside), room, room_of(name)) for name in names}
    return {(file, room, other) for file, room, other in found if other != room}


def test_every_room_has_a_floor():
    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    rooms |= {path.stem for path in PACKAGE.glob("[!_]*.py")}
    assert rooms == set(FLOOR)


def test_imports_go_down():
    found = imports()
    assert len(found) > 100
    assert [each for each in sorted(found) if FLOOR[each[2]] >= FLOOR[each[1]]] == []


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
