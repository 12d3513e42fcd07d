"""Validation metrics: token-weighted, so exact whatever the batches and the number of ranks."""

import math

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

SUM_DTYPE = torch.float32 if torch.backends.mps.is_available() else torch.float64  # mps has no float64


class TokenMean(Metric):
    """Mean negative log-likelihood of all tokens seen, in nats."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=SUM_DTYPE), dist_reduce_fx="sum")
        self.add_state("tokens", torch.zeros((), dtype=SUM_DTYPE), dist_reduce_fx="sum")

    def update(self, total: Tensor, tokens: Tensor) -> None:
        """Adds the summed loss `total` (nats) of `tokens` tokens."""
        # Promoted anew: `precision: bf16-true` converts the whole module, and the sums with it.
        self.total = self.total.to(SUM_DTYPE) + total.detach().to(SUM_DTYPE)
        self.tokens = self.tokens.to(SUM_DTYPE) + tokens

    def compute(self) -> Tensor:
        return self.total / self.tokens


class Perplexity(TokenMean):
    """exp of the mean negative log-likelihood a token."""

    def compute(self) -> Tensor:
        return super().compute().exp()


class BitsPerByte(TokenMean):
    """Bits to encode one UTF-8 byte of text: comparable across tokenizers, as perplexity is not."""

    def __init__(self, bytes_per_token: float) -> None:
        super().__init__()
        self.bytes_per_token = bytes_per_token

    def compute(self) -> Tensor:
        return super().compute() / (self.bytes_per_token * math.log(2))


def validation_metrics(bytes_per_token: float | None) -> MetricCollection:
    """val/loss and val/perplexity, and val/bits_per_byte where the data knows its bytes."""
    metrics: dict[str, Metric] = {"loss": TokenMean(), "perplexity": Perplexity()}
    if bytes_per_token is not None:
        metrics["bits_per_byte"] = BitsPerByte(bytes_per_token)
    return MetricCollection(metrics, prefix="val/")
