"""Arguments of a run small enough for a test, and what a run says when it fails."""

from pathlib import Path

SIZES = ["--model.hidden_size=32", "--model.num_layers=2", "--model.num_heads=2", "--model.intermediate_size=48"]


def fit_args(source: Path) -> list[str]:
    trainer = {
        "accelerator": "cpu",
        "max_steps": "4",
        "val_check_interval": "2",
        "check_val_every_n_epoch": "null",
        "num_sanity_val_steps": "-1",
        "enable_progress_bar": "false",
        "enable_model_summary": "false",
        "log_every_n_steps": "1",
        "logger.class_path": "lightning.pytorch.loggers.TensorBoardLogger",
        "logger.init_args.save_dir": "runs",
        "logger.init_args.name": "test",
    }
    data = {"source": str(source), "tokenizer": "bytes", "seq_len": "32", "batch_size": "4", "dir": "shards"}
    flags = [f"--trainer.{key}={value}" for key, value in trainer.items()]
    flags += [f"--data.{key}={value}" for key, value in data.items()]
    return ["fit", *SIZES, *flags]


def only_line(err: str) -> str:
    """The error line; Lightning's own notices before it do not count."""
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, err
    assert err.rstrip().endswith(lines[0]), "the error is the last thing said"
    return lines[0]
