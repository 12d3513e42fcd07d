import pytest

from lightning_dar.ops import chunk, chunk_backward


@pytest.fixture
def chunk_rows(monkeypatch: pytest.MonkeyPatch):
    """Sets the chunk length."""

    def set_rows(rows: int) -> None:
        monkeypatch.setattr(chunk, "CHUNK_ROWS", rows)
        monkeypatch.setattr(chunk_backward, "CHUNK_ROWS", rows)

    return set_rows
