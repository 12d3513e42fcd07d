"""A study small enough for a test: two variants of a network of two layers."""

from pathlib import Path

import pytest
import yaml

TRAINER = {
    "accelerator": "cpu",
    "max_steps": 20,
    "val_check_interval": 10,
    "check_val_every_n_epoch": None,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
    "enable_model_summary": False,
}


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory) -> Path:
    """A folder with documents to train on."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "text").mkdir()
    for number in range(30):
        words = " ".join(f"line {number * line % 17} of text {line}" for line in range(40 + number))
        (folder / "text" / f"{number}.txt").write_text(words)
    return folder


def write_study(folder: Path, **changes) -> Path:
    """Writes `study.yaml` with one cell for each of two variants and two seeds."""
    study = {
        "output": str(folder / "out"),
        "settings": {
            "model": {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 48},
            "data": {
                "source": str(folder / "text"),
                "dir": str(folder / "shards"),
                "tokenizer": "bytes",
                "seq_len": 32,
                "batch_size": 4,
                "val_fraction": 0.4,
            },
            "trainer": TRAINER,
        },
        "seeds": [0, 1],
        "variants": {
            "standard": {"settings": {"model.residual.name": "standard"}},
            "delta": {"settings": {"model.residual.name": "delta-sublayer", "model.optimizer.lr": 0.01}},
        },
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**study, **changes}))
    return path
