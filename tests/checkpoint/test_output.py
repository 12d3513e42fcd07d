"""Folders take their names whole, and take nobody else's."""

from pathlib import Path

import pytest

from lightning_dar.checkpoint.output import new_folder
from lightning_dar.errors import DataError


def folder_with(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def written(output: Path) -> None:
    with new_folder(output, 1) as partial:
        (partial / "file").write_text("new")


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_beside_it_is_touched(tmp_path, exists):
    output, neighbours = tmp_path / "model", [folder_with(tmp_path / f"model{end}", "mine") for end in (".old", "-2")]
    if exists:
        folder_with(output, "before")
    written(output)
    assert (output / "file").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "model.old", "model-2"}
    assert all((path / "file").read_text() == "mine" for path in neighbours)


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    target, output = folder_with(tmp_path / "precious", "mine"), tmp_path / "model"
    output.symlink_to(target)
    written(output)
    assert not output.is_symlink() and (output / "file").read_text() == "new"
    assert (target / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "precious"}


def test_what_fails_leaves_the_folder_as_it_was(tmp_path):
    output = folder_with(tmp_path / "model", "before")
    with pytest.raises(DataError, match="cannot be written"), new_folder(output, 1) as partial:
        (partial / "file").write_text("half")
        raise PermissionError(13, "no")
    assert (output / "file").read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
