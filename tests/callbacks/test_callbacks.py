"""The callbacks that do not measure routing, in real runs of a few steps."""

import os
import signal

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from lightning_dar.callbacks import FinalValidation, Interruption, RoutingSharpness, RunSummary, SampleText, Throughput
from lightning_dar.callbacks.throughput import peak_flops
from lightning_dar.text import Tokenizer
from runs import BATCH, SEQ_LEN, RandomTokens, events, fit, language_model


def test_throughput_counts_tokens_against_the_clock(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("lightning_dar.callbacks.throughput.perf_counter", lambda: now[0])

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


def test_utilisation_where_the_peak_is_known(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("lightning_dar.callbacks.throughput.perf_counter", lambda: now[0])
    monkeypatch.setattr("lightning_dar.callbacks.throughput.peak_flops", lambda device, precision: 1e9)

    class Slow(L.Callback):
        def on_train_batch_start(self, *_):
            now[0] += 1

    model = language_model("standard")
    trainer = fit(tmp_path, Throughput(), Slow(), model=model, val_check_interval=100, limit_val_batches=0)
    matrices = 3 * (4 * 16 * 16 + 3 * 16 * 24) + 257 * 16
    flops = 6 * matrices + 6 * 3 * 16 * SEQ_LEN
    logged = [event.value for event in events(trainer).Scalars("throughput/mfu")]
    assert logged == pytest.approx([BATCH * SEQ_LEN * flops / 1e9] * len(logged))
    assert len(logged) == 5


def test_no_utilisation_on_a_cpu_and_its_peak_memory(tmp_path):
    logged = events(fit(tmp_path, Throughput(), limit_val_batches=0))
    assert "throughput/mfu" not in logged.Tags()["scalars"]
    assert 0.1 < logged.Scalars("throughput/peak_memory_gib")[-1].value < 64  # a process with PyTorch in it


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA H200", 989e12), ("NVIDIA T1000", None)])
def test_peak_by_the_gpus_own_name(name, peak, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda", 0), "bf16-mixed") == peak
    assert peak_flops(torch.device("cpu"), "bf16-mixed") is None


def test_validation_does_not_count_as_training_time(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("lightning_dar.callbacks.throughput.perf_counter", lambda: now[0])

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
    from lightning_dar.text.tokenizer import load_tokenizer

    return load_tokenizer("bytes").to_json()


@pytest.mark.draws
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


def test_an_interruption_saves_what_the_other_callbacks_do_in_its_step(tmp_path):
    """Wherever it stands among them."""

    class Signal(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    saving = ModelCheckpoint(every_n_train_steps=100)
    with pytest.raises(SystemExit):
        fit(tmp_path, Interruption(), Signal(), EMAWeightAveraging(), saving)
    (path,) = tmp_path.rglob("interrupted.ckpt")
    content = torch.load(path, weights_only=True)
    assert content["global_step"] == content["averaging_state"]["n_averaged"] == 3
