"""Validation metrics against torchmetrics and by hand; exact whatever the batches and ranks."""

import math

import pytest
import torch
from tiny import VOCAB, scramble, tiny_model, tokens
from torchmetrics import text

from lightning_dar.training.loss import (
    IGNORE_INDEX,
    BitsPerByte,
    Perplexity,
    TokenMean,
    chunked_cross_entropy,
    validation_metrics,
)


def uneven_batches():
    """(logits, targets, summed loss, tokens) of three batches of different sizes, some targets ignored."""
    model = scramble(tiny_model())
    for batch, length in ((2, 9), (1, 3), (4, 6)):
        input_ids, targets = tokens(batch, length), tokens(batch, length)
        targets[0, : length // 2] = IGNORE_INDEX
        with torch.no_grad():
            logits = model(input_ids)
            total = model(input_ids, head=lambda h, w, t=targets: chunked_cross_entropy(h, w, t, chunk_logits=VOCAB))
        yield logits, targets, total, (targets != IGNORE_INDEX).sum()


def test_perplexity_is_that_of_torchmetrics():
    ours, mean, theirs = Perplexity(), TokenMean(), text.Perplexity(ignore_index=IGNORE_INDEX)
    for logits, targets, total, count in uneven_batches():
        ours.update(total, count)
        mean.update(total, count)
        theirs.update(logits, targets)
    assert ours.compute().item() == pytest.approx(theirs.compute().item(), rel=1e-5)
    assert mean.compute().item() == pytest.approx(math.log(theirs.compute().item()), rel=1e-5)


def test_tokens_weigh_equally_not_batches():
    metric = TokenMean()
    metric.update(torch.tensor(10.0), torch.tensor(1))
    metric.update(torch.tensor(9.0), torch.tensor(9))
    assert metric.compute() == 1.9


def test_ranks_add_up():
    one, other, together = TokenMean(), TokenMean(), TokenMean()
    for metric in (one, together):
        metric.update(torch.tensor(10.0), torch.tensor(1))
    for metric in (other, together):
        metric.update(torch.tensor(9.0), torch.tensor(9))
    one.merge_state(other)
    assert one.compute() == together.compute() == 1.9


def test_a_billion_tokens_lose_nothing():
    metric = TokenMean()
    metric.update(torch.tensor(2.0**30), torch.tensor(2**30))
    for _ in range(10):
        metric.update(torch.tensor(1.0), torch.tensor(1))
    assert metric.total.item() == metric.tokens.item() == 2**30 + 10


def test_bits_per_byte():
    """20 nats over 10 tokens of 2.5 bytes each: 0.8 nats a byte."""
    metric = BitsPerByte(bytes_per_token=2.5)
    metric.update(torch.tensor(20.0), torch.tensor(10))
    assert metric.compute().item() == pytest.approx(0.8 / math.log(2))


def test_a_uniform_guess_over_bytes_is_eight_bits():
    metric = BitsPerByte(bytes_per_token=1.0)
    metric.update(torch.tensor(100 * math.log(256)), torch.tensor(100))
    assert metric.compute().item() == pytest.approx(8.0)


def test_validation_metrics_by_name():
    metrics = validation_metrics(bytes_per_token=2.0)
    metrics.update(torch.tensor(6.0), torch.tensor(2))
    metrics.update(torch.tensor(2.0), torch.tensor(2))
    values = {name: value.item() for name, value in metrics.compute().items()}
    assert values == pytest.approx(
        {"val/loss": 2.0, "val/perplexity": math.exp(2.0), "val/bits_per_byte": 1 / math.log(2)}
    )


def test_no_bits_per_byte_where_bytes_are_unknown():
    assert set(validation_metrics(bytes_per_token=None)) == {"val/loss", "val/perplexity"}
