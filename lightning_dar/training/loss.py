"""Cross entropy without the full logits, and the validation metrics made of it.

With a vocabulary of 151,936 the logits of one batch outweigh the model. Here they exist one chunk of tokens at
a time: each chunk's gradient is taken at once, in the forward, and only the gradients of the hidden states and of
the head are kept. (torch's own `linear_cross_entropy` chunks too, but returns the loss in the dtype of its
input: three digits under bf16.)
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric, MetricCollection

from lightning_dar.text.loading import IGNORE_INDEX

CHUNK_LOGITS = 2**26  # 256 MiB of fp32
SUM_DTYPE = torch.float32 if torch.backends.mps.is_available() else torch.float64  # mps has no float64


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, chunk_logits: int = CHUNK_LOGITS) -> Tensor:
    """Sum of the cross entropies of all targets that are not -100.

    Args:
        hidden: [B, T, D], any float dtype.
        weight: [V, D], the head.
        targets: int64 [B, T]; -100 is ignored.
        chunk_logits: logits held at a time, in elements.

    Returns:
        fp32 scalar, in nats. Its backward runs once.
    """
    chunk_tokens = max(1, chunk_logits // weight.shape[0])
    flat = hidden.flatten(0, -2), weight, targets.flatten()
    return _ChunkedCrossEntropy.apply(*flat, chunk_tokens, torch.is_grad_enabled())


def token_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk_logits: int = CHUNK_LOGITS
) -> tuple[Tensor, Tensor]:
    """The sum of `chunked_cross_entropy`, to the last bit, and its terms; same arguments, without gradient.

    Returns:
        fp32 scalar and fp32 [B, T], in nats; 0 where a target is ignored.
    """
    chunk_tokens = max(1, chunk_logits // weight.shape[0])
    flat, wanted = hidden.flatten(0, -2), targets.flatten()
    total = hidden.new_zeros((), dtype=torch.float32)
    losses = hidden.new_empty(wanted.shape, dtype=torch.float32)
    for start in range(0, len(wanted), chunk_tokens):
        rows = slice(start, start + chunk_tokens)
        log_probs = F.log_softmax(F.linear(flat[rows], weight).float(), dim=-1)
        total += F.nll_loss(log_probs, wanted[rows], ignore_index=IGNORE_INDEX, reduction="sum")
        losses[rows] = F.nll_loss(log_probs, wanted[rows], ignore_index=IGNORE_INDEX, reduction="none")
    return total, losses.view_as(targets)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk_tokens: int, grads: bool) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        needs_hidden, needs_weight = (grads and needed for needed in ctx.needs_input_grad[:2])
        hidden_grad = torch.empty_like(hidden) if needs_hidden else None
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        for start in range(0, hidden.shape[0], chunk_tokens):
            rows = slice(start, start + chunk_tokens)
            logits = F.linear(hidden[rows], weight)
            log_probs = F.log_softmax(logits.float(), dim=-1)
            total += F.nll_loss(log_probs, targets[rows], ignore_index=IGNORE_INDEX, reduction="sum")
            if not (needs_hidden or needs_weight):
                continue
            logits_grad = _logits_grad(log_probs, targets[rows]).to(logits.dtype)
            if needs_hidden:
                hidden_grad[rows] = logits_grad @ weight
            if needs_weight:
                weight_grad += logits_grad.T @ hidden[rows]
        ctx.grads = hidden_grad, weight_grad
        ctx.dtypes = hidden.dtype, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("chunked_cross_entropy has no second derivative (create_graph)")
        if ctx.grads is None:
            raise RuntimeError("chunked_cross_entropy keeps its gradients for one backward only (retain_graph)")
        grads, ctx.grads = ctx.grads, None
        scaled = (g if g is None else g.mul_(grad).to(dtype) for g, dtype in zip(grads, ctx.dtypes, strict=True))
        return *scaled, None, None, None


def _logits_grad(log_probs: Tensor, targets: Tensor) -> Tensor:
    """softmax - one_hot, zero in ignored rows; overwrites `log_probs`."""
    kept = targets != IGNORE_INDEX
    grad = log_probs.exp_()
    rows = torch.arange(len(targets), device=targets.device)
    grad[rows, targets.clamp_min(0)] -= 1.0
    return grad.mul_(kept[:, None])


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
