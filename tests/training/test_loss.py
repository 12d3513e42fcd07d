"""The chunked cross entropy against the plain one in float64, and what it never holds."""

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_dar.model import build_transformer, resolve_config
from lightning_dar.residual import ResidualConfig
from lightning_dar.training.loss import IGNORE_INDEX, chunked_cross_entropy, token_cross_entropy

VOCAB, PAPER_VOCAB = 13, 151_936


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation allocates; views allocate nothing."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            self.numel = max(self.numel, *sizes, 0)
        return result


def inputs(dtype=torch.float32, batch=3, length=7, dim=8, vocab=VOCAB):
    hidden = torch.randn(batch, length, dim, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, dim, dtype=dtype, requires_grad=True)
    targets = torch.randint(vocab, (batch, length))
    targets[0, :3] = targets[-1, -1] = IGNORE_INDEX
    return hidden, weight, targets


def plain(hidden, weight, targets):
    """The same sum, all logits at once, in float64."""
    logits = (hidden.double() @ weight.double().T).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")


def relative(actual, expected):
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("chunk_tokens", [1, 3, 4, 7, 21, 22, 1000])  # of 21 tokens
def test_value_and_gradients(chunk_tokens):
    hidden, weight, targets = inputs()
    loss = chunked_cross_entropy(hidden, weight, targets, chunk_logits=chunk_tokens * VOCAB)
    expected = plain(hidden, weight, targets)
    assert loss.dtype == torch.float32
    assert relative(loss, expected) < 1e-6
    scale = 0.37  # an upstream gradient other than 1
    ours = torch.autograd.grad(loss * scale, (hidden, weight))
    theirs = torch.autograd.grad(expected * scale, (hidden, weight))
    for actual, reference in zip(ours, theirs, strict=True):
        assert relative(actual, reference) < 1e-6
    assert ours[0][targets == IGNORE_INDEX].eq(0).all()


def test_a_chunk_smaller_than_one_tokens_logits_still_works():
    hidden, weight, targets = inputs()
    loss = chunked_cross_entropy(hidden, weight, targets, chunk_logits=1)
    assert relative(loss, plain(hidden, weight, targets)) < 1e-6


def test_all_targets_ignored():
    hidden, weight, targets = inputs()
    loss = chunked_cross_entropy(hidden, weight, torch.full_like(targets, IGNORE_INDEX))
    loss.backward()
    assert loss == 0 and hidden.grad.eq(0).all() and weight.grad.eq(0).all()


def test_large_logits_do_not_overflow():
    hidden, weight, targets = inputs()
    loss = chunked_cross_entropy(100 * hidden, weight, targets)
    assert relative(loss, plain(100 * hidden, weight, targets)) < 1e-6


def test_bf16_autocast():
    hidden, weight, targets = inputs(batch=4, length=16, dim=32, vocab=50)
    with torch.autocast("cpu", torch.bfloat16):
        loss = chunked_cross_entropy(hidden, weight, targets, chunk_logits=10 * 50)
    assert loss.dtype == torch.float32
    logits = F.linear(hidden.bfloat16(), weight.bfloat16()).double().flatten(0, 1)  # the only rounding of the value
    expected = F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
    assert relative(loss, expected) < 1e-6
    ours = torch.autograd.grad(loss, (hidden, weight))
    theirs = torch.autograd.grad(plain(hidden, weight, targets), (hidden, weight))
    for actual, reference in zip(ours, theirs, strict=True):
        assert actual.dtype == torch.float32
        assert relative(actual, reference) < 1e-2


def test_bf16_weights_are_summed_in_fp32():
    """Over 4096 chunks: a bf16 running sum would stop growing after a few hundred."""
    hidden, weight = torch.ones(1, 4096, 1), torch.zeros(2, 1)
    hidden, weight = (x.bfloat16().requires_grad_() for x in (hidden, weight))
    loss = chunked_cross_entropy(hidden, weight, torch.zeros(1, 4096, dtype=torch.long), chunk_logits=1)
    loss.backward()
    assert loss.item() == pytest.approx(4096 * math.log(2), rel=1e-4)
    assert weight.grad.dtype == hidden.grad.dtype == torch.bfloat16
    assert weight.grad.flatten().tolist() == [-2048, 2048]  # 4096 x (1/2 - 1) and 4096 x 1/2


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_only_the_gradient_that_is_needed(frozen):
    hidden, weight, targets = inputs()
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    trained = weight if frozen == "hidden" else hidden
    (ours,) = torch.autograd.grad(chunked_cross_entropy(hidden, weight, targets), trained)
    (theirs,) = torch.autograd.grad(plain(hidden, weight, targets), trained)
    assert relative(ours, theirs) < 1e-6


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_none_are_computed(mode):
    hidden, weight, targets = inputs(vocab=4096)
    with mode(), LargestTensor() as largest:
        loss = chunked_cross_entropy(hidden, weight, targets, chunk_logits=2 * 4096)
    assert not loss.requires_grad
    assert relative(loss, plain(hidden, weight, targets)) < 1e-6
    assert largest.numel == 2 * 4096  # a chunk's logits, and no gradient of the head


def test_second_backward_is_refused():
    loss = chunked_cross_entropy(*inputs())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward only"):
        loss.backward()


def test_gradient_of_the_gradient_is_refused():
    hidden, weight, targets = inputs()
    loss = chunked_cross_entropy(hidden, weight, targets)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, hidden, create_graph=True)


def test_the_full_logits_never_exist():
    hidden, weight, targets = inputs(batch=2, length=16, dim=4, vocab=PAPER_VOCAB)
    full = targets.numel() * PAPER_VOCAB
    with LargestTensor() as largest:
        chunked_cross_entropy(hidden, weight, targets, chunk_logits=4 * PAPER_VOCAB).backward()
    assert largest.numel <= max(4 * PAPER_VOCAB, weight.numel())
    with LargestTensor() as largest:
        F.cross_entropy(F.linear(hidden, weight).flatten(0, 1), targets.flatten()).backward()
    assert largest.numel == full  # so they would have been seen


def test_the_full_logits_never_exist_in_a_training_step_of_the_paper():
    """On the meta device: sizes only. 2 x 2048 tokens of the 220M preset."""
    with torch.device("meta"):
        model = build_transformer(resolve_config("220m"), ResidualConfig(name="standard"))
        input_ids = torch.zeros(2, 2048, dtype=torch.long)
    with LargestTensor() as largest:
        model(input_ids, head=partial(chunked_cross_entropy, targets=input_ids)).backward()
    assert largest.numel <= max(2**26, model.embed.weight.numel())


@pytest.mark.parametrize("chunk_tokens", [1, 4, 21, 1000])
def test_terms_of_the_sum(chunk_tokens):
    hidden, weight, targets = inputs()
    options = {"chunk_logits": chunk_tokens * VOCAB}
    total, losses = token_cross_entropy(hidden.detach(), weight.detach(), targets, **options)
    assert torch.equal(total, chunked_cross_entropy(hidden, weight, targets, **options).detach())
    logits = (hidden.double() @ weight.double().T).flatten(0, 1)
    expected = F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="none").view_as(targets)
    torch.testing.assert_close(losses.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    assert losses[targets == IGNORE_INDEX].eq(0).all()
