"""Runs of `cli.py` in processes of their own, which may be killed, on shards prepared once."""

from pathlib import Path

import pytest
from runs_to_kill import Runs


@pytest.fixture(scope="module")
def shards(tmp_path_factory, text_folder) -> Path:
    runs = Runs(tmp_path_factory.mktemp("prepared"), text_folder)
    runs.run("prepare", "--data.source", text_folder, "--data.tokenizer=bytes", "--data.dir=shards").check()
    return runs.folder / "shards"


@pytest.fixture
def new_runs(tmp_path, text_folder, shards):
    """new_runs(name) -> Runs in an empty folder."""

    def new(name: str) -> Runs:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "shards").symlink_to(shards)
        return Runs(folder, text_folder)

    return new
