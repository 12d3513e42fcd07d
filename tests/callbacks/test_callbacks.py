"""The callbacks in real runs of a few steps."""

from pathlib import Path

import lightning as L
import matplotlib.image
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

from callbacks import FinalValidation, RoutingSharpness, RunSummary, SampleText, Throughput
from lightning_dar.data import Tokenizer
from lightning_dar.diagnostics.probe import RoutingProbe, mean_sharpness
from lightning_dar.residual import ResidualConfig
from lightning_dar.training import LanguageModel

VOCAB, BATCH, SEQ_LEN = 257, 4, 16


class RandomTokens(L.LightningDataModule):
    """Ten training batches and six validation batches of random ids."""

    tokenizer, vocab_size, bytes_per_token = None, VOCAB, 1.0

    def __init__(self):
        super().__init__()
        ids = torch.randint(VOCAB, (64, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
        self.batches = [{"input_ids": row[:, :-1], "targets": row[:, 1:]} for row in ids.split(BATCH)]

    def train_dataloader(self):
        return DataLoader(self.batches[:10], batch_size=None)

    def val_dataloader(self):
        return DataLoader(self.batches[10:], batch_size=None)


def language_model(name: str = "delta-sublayer") -> LanguageModel:
    return LanguageModel(
        residual=ResidualConfig(name=name), hidden_size=16, num_layers=3, num_heads=2, intermediate_size=24
    )


def fit(folder: Path, *callbacks: L.Callback, model: LanguageModel | None = None, **settings) -> L.Trainer:
    settings = {"max_steps": 6, "val_check_interval": 3, "log_every_n_steps": 1, **settings}
    trainer = L.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=TensorBoardLogger(folder, name="run"),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **settings,
    )
    trainer.fit(model or language_model(), RandomTokens())
    return trainer


def events(trainer: L.Trainer) -> EventAccumulator:
    return EventAccumulator(trainer.log_dir, size_guidance={"images": 0, "tensors": 0}).Reload()


def test_sharpness_is_logged_per_site_and_agrees_with_a_probe(tmp_path):
    module = language_model()
    trainer = fit(tmp_path, RoutingSharpness(every_n_steps=2, val_batches=2), model=module)
    logged = events(trainer)
    assert [event.step for event in logged.Scalars("routing/sharpness")] == [2, 4, 6]
    assert {f"routing_sites/sharpness_{site:02d}" for site in range(1, 6)} <= set(logged.Tags()["scalars"])

    probe = RoutingProbe(module.model.residual, 6)
    for batch in RandomTokens().batches[10:12]:
        module.model(batch["input_ids"], residual=probe)
    final = logged.Scalars("val/sharpness")[-1].value
    assert final == pytest.approx(mean_sharpness(probe.sites, 6), rel=1e-5)
    deep = logged.Scalars("val/sharpness_deep")[-1].value
    assert deep == pytest.approx(mean_sharpness(probe.sites, 6, deepest=1 / 3), rel=1e-5)


def test_the_heat_map_is_an_image_in_the_logs_and_a_file(tmp_path):
    callback = RoutingSharpness()
    trainer = fit(tmp_path, callback)
    assert [event.step for event in events(trainer).Images("routing/mean_weights")] == [3, 6]
    assert callback.heat_map == Path(trainer.log_dir) / "routing.png"
    assert matplotlib.image.imread(callback.heat_map).std() > 0.05, "not a blank picture"


def test_measuring_changes_nothing_that_is_trained(tmp_path):
    finals = []
    for callbacks in ([], [RoutingSharpness(every_n_steps=1), SampleText(), Throughput()]):
        L.seed_everything(1)
        module = language_model()
        fit(tmp_path, *callbacks, model=module)
        finals.append(module.model.state_dict())
    assert all(torch.equal(tensor, finals[1][name]) for name, tensor in finals[0].items())


def test_standard_logs_no_sharpness(tmp_path):
    trainer = fit(tmp_path, RoutingSharpness(every_n_steps=1), model=language_model("standard"))
    assert not [tag for tag in events(trainer).Tags()["scalars"] if "sharpness" in tag]


def test_throughput_counts_tokens_against_the_clock(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("callbacks.throughput.perf_counter", lambda: now[0])

    class Slow(L.Callback):
        """A quarter of a second of waiting for each batch, three quarters of computing."""

        def on_train_batch_start(self, *_):
            now[0] += 0.75

        def on_train_batch_end(self, *_):
            now[0] += 0.25

    trainer = fit(tmp_path, Throughput(), Slow(), val_check_interval=100, limit_val_batches=0)
    logged = events(trainer)
    assert {event.value for event in logged.Scalars("throughput/tokens_per_second")} == {BATCH * SEQ_LEN}
    assert {event.value for event in logged.Scalars("throughput/data_wait")} == {0.25}


def test_validation_does_not_count_as_training_time(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("callbacks.throughput.perf_counter", lambda: now[0])

    class SlowValidation(L.Callback):
        def on_train_batch_start(self, *_):
            now[0] += 1

        def on_validation_batch_start(self, *_):
            now[0] += 1000

    trainer = fit(tmp_path, Throughput(), SlowValidation())
    assert {event.value for event in events(trainer).Scalars("throughput/tokens_per_second")} == {BATCH * SEQ_LEN}


def test_a_run_that_ends_between_two_validations_validates_once_more(tmp_path):
    without = fit(tmp_path, max_steps=5, val_check_interval=3)
    assert [event.step for event in events(without).Scalars("val/loss")] == [2]
    trainer = fit(tmp_path, FinalValidation(), max_steps=5, val_check_interval=3)
    assert [event.step for event in events(trainer).Scalars("val/loss")] == [2, 4]


def test_sample_text_is_deterministic_and_logged(tmp_path):
    texts = []
    for _ in range(2):
        L.seed_everything(1)
        sample = SampleText(prompt="abc", max_new_tokens=8)
        module = language_model()
        RandomTokens.tokenizer = Tokenizer.from_json(tokenizer_json())
        try:
            trainer = fit(tmp_path, sample, model=module)
        finally:
            RandomTokens.tokenizer = None
        texts.append(sample.text)
        assert "sample/text_summary" in events(trainer).Tags()["tensors"]
    assert texts[0] == texts[1]
    assert texts[0].startswith("abc")


def tokenizer_json() -> str:
    from lightning_dar.data.tokenizer import load_tokenizer

    return load_tokenizer("bytes").to_json()


def test_the_summary_names_what_was_measured(tmp_path, capsys):
    fit(tmp_path, RoutingSharpness(), FinalValidation(), RunSummary(), max_steps=4)
    out = capsys.readouterr().out
    for row in ("validation perplexity", "sharpness, deepest third", "routing heat map", "tensorboard --logdir"):
        assert row in out
