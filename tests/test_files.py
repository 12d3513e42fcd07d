"""Folders take their names whole, and take nobody else's."""

from pathlib import Path

import pytest

from lightning_dar.errors import DataError
from lightning_dar.files import new_folder, put_in_place


def folder_with(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def written(output: Path) -> None:
    with new_folder(output, 1) as partial:
        (partial / "file").write_text("new")


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_beside_it_is_touched(tmp_path, exists):
    output, neighbours = tmp_path / "model", [tmp_path / f"model{end}" for end in (".old", ".partial")]
    for path in [output, *neighbours] if exists else neighbours:
        folder_with(path, "mine")
    written(output)
    assert (output / "file").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "model.old", "model.partial"}
    assert all((path / "file").read_text() == "mine" for path in neighbours)


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    target, output = folder_with(tmp_path / "precious", "mine"), tmp_path / "model"
    output.symlink_to(target)
    written(output)
    assert not output.is_symlink() and (output / "file").read_text() == "new"
    assert (target / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "precious"}


@pytest.mark.parametrize("new", ["file", "folder"])
def test_a_file_and_a_folder_replace_each_other(tmp_path, new):
    """As checkpoints do where a sharded run goes on as another."""
    file, folder = tmp_path / "file", folder_with(tmp_path / "folder", "whole")
    file.write_text("whole")
    partial, output = (file, folder) if new == "file" else (folder, file)
    put_in_place(partial, output)
    assert output.is_file() == (new == "file")
    assert (output if new == "file" else output / "file").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


def test_what_fails_leaves_the_folder_as_it_was(tmp_path):
    output = folder_with(tmp_path / "model", "before")
    with pytest.raises(DataError, match="cannot be written"), new_folder(output, 1) as partial:
        (partial / "file").write_text("half")
        raise PermissionError(13, "no")
    assert (output / "file").read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
