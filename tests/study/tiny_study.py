"""The config of a study small enough for a test."""

from pathlib import Path

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
