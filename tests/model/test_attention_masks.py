"""Who attends to whom: causality, packed documents, and the xformers backend as far as a CPU can tell."""

import math
import sys

import pytest
import torch
from tiny import scramble, tiny_config, tiny_model, tokens

from lightning_dar.errors import UsageError
from lightning_dar.model import attention
from lightning_dar.model.attention import attend, document_mask
from lightning_dar.residual import available_residuals

DOCUMENTS = torch.tensor([[0, 0, 0, 0, 1, 2, 2, 2, 2], [3, 3, 4, 4, 4, 4, 4, 5, 5]])


def document_slices():
    for row, ids in enumerate(DOCUMENTS):
        for document in ids.unique():
            where = (ids == document).nonzero().flatten()
            yield row, slice(int(where[0]), int(where[-1]) + 1)


@pytest.mark.parametrize("name", available_residuals())
def test_a_token_changes_nothing_before_it(name):
    model, before = scramble(tiny_model(name)), tokens(length=9)
    after = before.clone()
    after[:, 4] = (after[:, 4] + 1) % 31
    changed = (model(before) - model(after)).abs().amax(-1)
    assert changed[:, :4].eq(0).all()
    assert changed[:, 4:].gt(1e-4).all()


@pytest.mark.parametrize("name", ["standard", "delta-sublayer", "attnres"])
def test_a_packed_document_is_as_if_alone(name):
    model, input_ids = scramble(tiny_model(name)), tokens(2, 9)
    packed = model(input_ids, DOCUMENTS)
    for row, span in document_slices():
        alone = model(input_ids[row : row + 1, span])
        torch.testing.assert_close(packed[row, span], alone[0], atol=1e-4, rtol=1e-4)
    assert (packed - model(input_ids)).abs().max() > 0.1  # without the mask documents do mix


def test_other_documents_change_nothing():
    model, before = scramble(tiny_model("delta-sublayer")), tokens(2, 9)
    for row, span in document_slices():
        after = before.clone()
        after[row, span] = (after[row, span] + 1) % 31
        changed = (model(before, DOCUMENTS) - model(after, DOCUMENTS)).abs().amax(-1)
        inside = torch.zeros_like(DOCUMENTS, dtype=torch.bool)
        inside[row, span] = True
        assert changed[~inside].eq(0).all() and changed[inside].gt(1e-4).all()


def test_xformers_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"model\.attention_backend: xformers needs a CUDA GPU.*use sdpa"):
        tiny_model("standard", tiny_config(attention_backend="xformers"))


def test_xformers_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "xformers", None)
    monkeypatch.setitem(sys.modules, "xformers.ops", None)
    with pytest.raises(UsageError, match=r"model\.attention_backend: xformers cannot be imported"):
        tiny_model("standard", tiny_config(attention_backend="xformers"))


def test_xformers_keeps_the_same_documents_apart_as_sdpa():
    pytest.importorskip("xformers")
    allowed = torch.block_diag(*document_mask(DOCUMENTS, "sdpa")[:, 0]).bool()
    bias = document_mask(DOCUMENTS, "xformers").materialize(allowed.shape)
    assert torch.equal(bias == 0, allowed)
    assert bias[~allowed].eq(-math.inf).all()


@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["causal", "documents"])
def test_xformers_gets_grouped_heads_in_its_own_layout(monkeypatch, documents):
    """Its operator is replaced by a plain one of the same contract: [B, T, groups, heads, head_dim] and a bias."""
    ops = pytest.importorskip("xformers.ops")

    def plain(query, key, value, attn_bias):
        assert query.shape == key.shape == value.shape and query.ndim == 5
        scores = torch.einsum("bqghd,bkghd->bghqk", query, key) / math.sqrt(query.shape[-1])
        weights = (scores + attn_bias.materialize(scores.shape[-2:])).softmax(-1)
        return torch.einsum("bghqk,bkghd->bqghd", weights, value)

    monkeypatch.setattr(ops, "memory_efficient_attention", plain)
    q, k, v = torch.randn(2, 9, 6, 4), torch.randn(2, 9, 2, 4), torch.randn(2, 9, 2, 4)
    sdpa, xformers = (attend(q, k, v, document_mask(documents, name), name) for name in ("sdpa", "xformers"))
    torch.testing.assert_close(xformers, sdpa)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="xformers attention needs a CUDA GPU")
@pytest.mark.parametrize("documents", [None, DOCUMENTS], ids=["causal", "documents"])
def test_xformers_on_a_gpu_equals_sdpa(documents):
    pytest.importorskip("xformers")
    documents = None if documents is None else documents.cuda()
    q, k, v = (torch.randn(2, 9, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (6, 2, 2))
    sdpa, xformers = (attend(q, k, v, document_mask(documents, name), name) for name in ("sdpa", "xformers"))
    torch.testing.assert_close(xformers, sdpa, atol=2e-2, rtol=2e-2)


def test_no_documents_means_plain_causal_attention():
    assert attention.document_mask(None, "sdpa") is None
    assert attention.document_mask(None, "xformers") is None
