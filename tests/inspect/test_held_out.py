"""Held-out text against the stream of ids that it is cut from."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from inspected import checkpoint_of
from spoken import lay

from lightning_dar.diagnostics.held_out import text_windows, validation_windows
from lightning_dar.text import TextData
from lightning_dar.text.tokenizer import BYTES_JSON, Tokenizer, load_tokenizer

TOKENIZER = Tokenizer(BYTES_JSON)
END = 256


def numbered(stream):
    """The document of each id, counted in a plain loop."""
    number, found = 0, []
    for token in stream:
        found.append(number)
        number += token == END
    return found


def test_text_is_cut_into_windows(tmp_path):
    stream = []
    for number, name in enumerate(("a.txt", "b.md", "c.txt", "d.txt", "e.txt", "f.txt", "g.txt", "h.txt")):
        words = f"document {number}, " + number % 3 * "longer"
        (tmp_path / name).write_text(words)
        stream += [*words.encode(), END]
    text = text_windows([str(tmp_path)], "text", TOKENIZER, checkpoint_of("standard"), seq_len=9, max_tokens=1000)
    count = len(stream) // 10
    assert text.windows.flatten().tolist() == stream[: 10 * count]
    expected = torch.tensor(numbered(stream)[: 10 * count]).view(count, 10)[:, 1:]
    assert torch.equal(text.units, expected)
    assert text.unit_tokens.tolist() == torch.bincount(expected.flatten()).tolist()
    assert text.about["documents"] == text.about["bootstrap_units"] == 8
    assert text.about["bytes_per_token"] == (len(stream) - 8) / len(stream)
    shorter = text_windows([str(tmp_path)], "text", TOKENIZER, checkpoint_of("standard"), seq_len=9, max_tokens=20)
    assert torch.equal(shorter.windows, text.windows[[0, count // 2]])
    assert shorter.about["documents"] == 2
    assert shorter.about["bootstrap_unit"] == "document", "there are no more windows"
    assert shorter.about["fingerprint"] != text.about["fingerprint"]


def test_documents_begin_and_end_as_in_training_and_what_is_no_text_is_left_out(tmp_path, capsys):
    tokenizer = load_tokenizer(str(lay(tmp_path / "model", {}, special=("<s>", "</s>"), template="<s> $A")))
    (tmp_path / "a.txt").write_text("some")
    (tmp_path / "b.txt").write_text("some", encoding="utf-16")
    (tmp_path / "c.txt").write_text("more")
    paths = [str(tmp_path / "*.txt")]
    text = text_windows(paths, "text", tokenizer, checkpoint_of("standard"), seq_len=11, max_tokens=1000)
    assert text.windows.tolist() == [[256, *tokenizer.encode("some"), 257, 256, *tokenizer.encode("more"), 257]]
    assert "left out 1 document(s) that are no text: 1 in UTF-16" in capsys.readouterr().err


def test_one_document_is_drawn_by_windows(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 50)
    text = text_windows([str(tmp_path)], "text", TOKENIZER, checkpoint_of("standard"), seq_len=9, max_tokens=1000)
    assert text.unit == "window"
    assert text.unit_tokens.tolist() == [9] * 5
    assert text.about["bootstrap_units"] == 5


def test_documents_run_on_over_validation_windows_that_are_left_out(text_folder, tmp_path):
    settings = {"source": str(text_folder), "tokenizer": "bytes", "dir": str(tmp_path / "shards"), "batch_size": 3}
    settings |= {"val_fraction": 0.2, "val_windows": 40}
    checkpoint = replace(checkpoint_of("standard"), content={"datamodule_hyper_parameters": settings})
    text = validation_windows(checkpoint, TOKENIZER, seq_len=99, max_tokens=2000)
    assert len(text.windows) == 20, "max_tokens is below val_windows"

    data = TextData(**{**settings, "seq_len": 99, "val_windows": None})
    data.prepare_data()
    data.setup()
    every = data.val_dataloader().dataset
    stream = torch.stack([every[index] for index in range(len(every))])
    places = [(stream == window).all(1).nonzero().item() for window in text.windows]
    assert max(b - a for a, b in pairwise(places)) > 1
    numbers = torch.tensor(numbered(stream.flatten().tolist())).view_as(stream)[places, 1:]
    assert torch.equal(text.units, torch.unique(numbers, return_inverse=True)[1])
    assert text.about["documents"] == len(numbers.unique()) >= 8
    assert Path(settings["dir"], "manifest.json").exists()
    assert [len(batch["input_ids"]) for batch, _ in text.batches()] == [3] * 6 + [2]
