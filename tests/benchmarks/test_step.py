import json
import subprocess
import sys

import pytest
import torch

from benchmarks.step import Entry, Setting, batch, entries_of, profile

TINY = ["--layers", "4", "--hidden-size", "16", "--seq-len", "8", "--batch-size", "1", "--vocab-size", "32"]
KEYS = ["strategy", "backend", "layers", "hidden_size", "throughput_vs_standard", "held_bytes_vs_standard"]
KEYS += ["peak_rss_mb", "tokens_per_second"]


def test_one_json_line_an_entry() -> None:
    command = [sys.executable, "-m", "benchmarks.step", *TINY, "--rounds", "1", "--json"]
    command += ["--strategies", "standard,delta-block", "--backends", "two_phase"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [list(row) for row in rows] == [KEYS, KEYS]
    assert [(row["strategy"], row["backend"]) for row in rows] == [("standard", "none"), ("delta-block", "two_phase")]
    assert rows[0]["held_bytes_vs_standard"] == 1 and rows[1]["held_bytes_vs_standard"] > 1
    assert all(row["peak_rss_mb"] > 50 and row["tokens_per_second"] > 0 for row in rows)


def test_standard_is_timed_once() -> None:
    entries = entries_of(["standard", "attnres"], ["naive", "fused"])
    assert [(entry.strategy, entry.backend) for entry in entries] == [
        ("standard", "none"),
        ("attnres", "naive"),
        ("attnres", "fused"),
    ]


def test_reference_has_the_same_parameters() -> None:
    pytest.importorskip("transformers")
    setting = Setting(layers=2, hidden_size=128, seq_len=8, batch_size=1)
    counts = [
        sum(p.numel() for p in Entry(name, "none").build(setting).model.parameters())
        for name in ("standard", "transformers-qwen3")
    ]
    assert counts[0] == counts[1]


def test_backends_give_the_same_loss() -> None:
    setting = Setting(layers=4, hidden_size=16, seq_len=8, batch_size=2, vocab_size=32)
    losses = [Entry("delta-sublayer", name).build(setting)(*batch(setting)) for name in ("naive", "fused", "two_phase")]
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(losses[2], losses[0])


def test_profile_is_a_table() -> None:
    table = profile(
        Entry("standard", "none"), Setting(layers=1, hidden_size=16, seq_len=8, batch_size=1, vocab_size=32)
    )
    assert "aten::mm" in table
