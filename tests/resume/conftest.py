"""Runs of `cli.py` in processes of their own, which may be killed, on shards prepared once."""

from pathlib import Path

import pytest
from runs_to_kill import Runs


@pytest.fixture(scope="module")
def shards(tmp_path_factory, text_folder) -> Path:
    runs = Runs(tmp_path_factory.mktemp("prepared"))
    runs.run("prepare", "--data.source", text_folder, "--data.tokenizer=bytes", "--data.dir=shards").check()
    return runs.folder / "shards"


@pytest.fixture
def new_runs(tmp_path, shards):
    """new_runs(name) -> Runs in an empty folder."""
    return lambda name: Runs(tmp_path / name, shards)
