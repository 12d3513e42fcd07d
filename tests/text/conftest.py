import pytest


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """240 short documents, one longer than a piece, and a jsonl file: about 0.3 MB."""
    folder = tmp_path_factory.mktemp("corpus")
    for i in range(240):
        (folder / f"{i:03}.txt").write_text(f"document {i}\n" + f"word{i} and more\n" * (i % 17), encoding="utf-8")
    (folder / "long.md").write_text("".join(f"line {i} of a long file, é\n" for i in range(9000)), encoding="utf-8")
    (folder / "rows.jsonl").write_text('{"text": "a row"}\n{"text": "another row"}\n', encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def prepared(corpus, tmp_path_factory):
    """The corpus as shards of bytes; tests read it only."""
    from lightning_dar.text.manifest import Request
    from lightning_dar.text.prepare import prepare

    directory = tmp_path_factory.mktemp("prepared") / "shards"
    request = Request(source=(str(corpus),), text_field="text", tokenizer="bytes", val_fraction=0.2)
    prepare(request, directory, num_workers=2)
    return directory
