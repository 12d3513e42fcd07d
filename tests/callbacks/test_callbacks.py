"""The callbacks that do not measure routing, in real runs of a few steps."""

import lightning as L

from callbacks import FinalValidation, RoutingSharpness, RunSummary, SampleText, Throughput
from lightning_dar.data import Tokenizer
from runs import BATCH, SEQ_LEN, RandomTokens, events, fit, language_model


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
    for row in (
        "validation perplexity",
        "sharpness, deepest third",
        "routing heat map",
        "routing by depth",
        "tensorboard --logdir",
    ):
        assert row in out
