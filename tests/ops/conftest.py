import pytest

from lightning_dar.ops.two_phase import forward, gradients


@pytest.fixture
def chunk_rows(monkeypatch: pytest.MonkeyPatch):
    """Sets the chunk length."""

    def set_rows(rows: int) -> None:
        monkeypatch.setattr(forward, "CHUNK_ROWS", rows)
        monkeypatch.setattr(gradients, "CHUNK_ROWS", rows)
        monkeypatch.setattr(gradients, "SPAN_ROWS", 2 * rows)

    return set_rows
