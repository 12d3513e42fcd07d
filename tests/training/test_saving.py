"""Checkpoints under their names are whole, also while one goes."""

import shutil

import pytest

from lightning_dar.run.saving import WholeFiles


@pytest.mark.parametrize("killed", [False, True])
def test_a_folder_that_is_removed_has_no_name_any_more(tmp_path, monkeypatch, killed):
    folder = tmp_path / "step=4.ckpt"
    folder.mkdir()
    for name in ("meta.pt", "__0_0.distcp"):
        (folder / name).write_bytes(b"part")

    def killed_half_way(path, **_) -> None:
        (path / "meta.pt").unlink()
        raise KeyboardInterrupt

    if killed:
        monkeypatch.setattr(shutil, "rmtree", killed_half_way)
        with pytest.raises(KeyboardInterrupt):
            WholeFiles().remove_checkpoint(folder)
    else:
        WholeFiles().remove_checkpoint(folder)
    assert [path.name for path in tmp_path.iterdir()] == ([".step=4.ckpt.partial"] if killed else [])
