import pytest

from lightning_dar.ops import chunk, chunk_backward


@pytest.fixture
def chunk_rows(monkeypatch: pytest.MonkeyPatch):
    """Sets the chunk length, and how many finished sources are still read one by one."""

    def set_rows(rows: int, direct: int) -> None:
        monkeypatch.setattr(chunk, "CHUNK_ROWS", rows)
        monkeypatch.setattr(chunk_backward, "CHUNK_ROWS", rows)
        monkeypatch.setattr(chunk, "DIRECT_SOURCES", direct)

    return set_rows
