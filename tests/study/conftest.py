"""Text for a study small enough for a test."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory) -> Path:
    """A folder with documents to train on."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "text").mkdir()
    for number in range(30):
        words = " ".join(f"line {number * line % 17} of text {line}" for line in range(40 + number))
        (folder / "text" / f"{number}.txt").write_text(words)
    return folder
