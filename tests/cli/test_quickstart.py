"""The README's first command, cut short."""

from pathlib import Path

import pytest

from lightning_dar import available_residuals

CONFIG = Path(__file__).parents[2] / "configs/quickstart.yaml"
SHORT = [
    "--trainer.max_steps=2",
    "--trainer.val_check_interval=2",
    "--trainer.accelerator=cpu",
    "--trainer.enable_progress_bar=false",
    "--data.val_windows=8",
]


@pytest.mark.draws
def test_quickstart_prepares_the_library_sources_and_trains(run):
    status, out, err = run("fit", "--config", CONFIG, *SHORT)
    assert status == 0, err
    assert "Encoding" in err, "preparation shows its progress"
    assert "runs/quickstart/version_0/routing.png" in out
    assert Path("data/stdlib-bpe-4096/manifest.json").is_file()


@pytest.mark.parametrize("name", available_residuals())
def test_every_registered_strategy_runs_under_the_same_config(name, run, text_folder):
    source = [f"--data.source={text_folder}", "--data.tokenizer=bytes", "--data.seq_len=32"]
    status, out, err = run("fit", "--config", CONFIG, *SHORT, *source, "--model.residual.name", name)
    assert status == 0, err
    assert "validation perplexity" in out
