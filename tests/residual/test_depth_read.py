"""The depth read by itself: its gradients, and its precision whatever the compute dtype."""

import pytest
import torch

from lightning_dar.ops import depth_read, depth_weights

EPS = 1e-6


def inputs(n=4, dim=8, dtype=torch.float64):
    sources = list(torch.randn(n, 2, 3, dim, dtype=dtype))
    return sources, torch.randn(dim, dtype=dtype), torch.rand(dim, dtype=dtype) + 0.5


def expected_weights(sources, query, gain):
    """Token by token in float64."""
    values = torch.stack([source.double() for source in sources], dim=-2)
    keys = values / (values.square().mean(-1, keepdim=True) + EPS).sqrt() * gain.double()
    return (keys @ query.double()).softmax(-1), values


@pytest.mark.parametrize("n", [1, 2, 7])
def test_gradients_against_finite_differences(n):
    sources, query, gain = inputs(n)
    leaves = [x.requires_grad_() for x in (*sources, query, gain)]
    assert torch.autograd.gradcheck(lambda *x: depth_read(x[:n], x[n], x[n + 1], EPS), leaves)


@pytest.mark.parametrize("autocast", [False, True])
def test_bf16_sources_are_read_in_fp32(autocast):
    sources, query, gain = inputs(n=5, dim=64, dtype=torch.float32)
    sources = [source.bfloat16() for source in sources]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        read = depth_read(sources, query, gain, EPS)
        weights = depth_weights(sources, query, gain, EPS)
    expected, values = expected_weights(sources, query, gain)
    assert read.dtype == torch.bfloat16 and weights.dtype == torch.float32
    torch.testing.assert_close(weights.double(), expected, rtol=0, atol=1e-6)
    exact = (expected[..., None] * values).sum(-2)
    torch.testing.assert_close(read.double(), exact, rtol=2**-8, atol=1e-6)  # one rounding, the downcast


def test_a_mix_of_dtypes_reads_in_the_wider():
    sources, query, gain = inputs(n=2, dtype=torch.float32)
    assert depth_read([sources[0], sources[1].bfloat16()], query, gain, EPS).dtype == torch.float32


def test_large_scores_do_not_overflow():
    sources, query, gain = inputs(n=3, dtype=torch.float32)
    weights = depth_weights(sources, 1e4 * query, gain, EPS)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
