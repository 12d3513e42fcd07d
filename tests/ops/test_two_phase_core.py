"""The core of the two-phase read by itself: plain tensors in and out, no autograd function, float64 as the truth."""

import ast
import inspect

import pytest
import torch

from lightning_dar.ops.definition import depth_read
from lightning_dar.ops.two_phase import backward, forward
from lightning_dar.ops.two_phase.forward import Row, Sources, all_logits, open_chunk, read_row, score_private

EPS, TOKENS, DIM = 1e-6, 5, 8


@pytest.fixture
def drawn() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = {"values": (TOKENS, 6, DIM), "queries": (9, DIM), "current": (TOKENS, DIM), "d_read": (TOKENS, DIM)}
    return {
        name: torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=name != "d_read")
        for name, size in sizes.items()
    }


def _row(drawn, number: int, count: int, after: list[int], private) -> Row:
    values, queries = drawn["values"].detach(), drawn["queries"].detach()
    sources = Sources(values, values.square().mean(-1).add(EPS).rsqrt(), queries)
    logits = all_logits(sources, after)
    chunk = open_chunk(sources, logits, after, forward.chunk_start(number))
    seen = score_private(private, queries[number], EPS)
    return Row(*chunk.phase_one(number), chunk.finished, sources, logits, number, count, seen)


def _truth(drawn, number: int, count: int, private) -> torch.Tensor:
    sources = [*drawn["values"][:, :count].unbind(1), *private]
    return depth_read([source[None] for source in sources], drawn["queries"][number], torch.ones(DIM), EPS)[0]


CASES = [(2, 3, False), (2, 3, True), (5, 6, False), (5, 4, True), (4, 4, True), (4, 4, False), (6, 5, True)]


@pytest.mark.parametrize(("number", "count", "with_current"), CASES)
def test_a_row_and_its_gradients(chunk_rows, drawn, number: int, count: int, with_current: bool) -> None:
    chunk_rows(4)
    after = [-1, 0, 1, 2, 4, 4][:count]
    private = [drawn["current"]] if with_current else []
    row = _row(drawn, number, count, after, [source.detach() for source in private])
    truth = _truth(drawn, number, count, private)
    torch.testing.assert_close(read_row(row, None, None), truth.detach())

    found = backward.row_backward(row, drawn["d_read"], None)
    torch.testing.assert_close(found.mean, (drawn["d_read"] * truth.detach()).sum(-1))
    if not with_current:
        return
    wanted = torch.autograd.grad(truth, drawn["current"], drawn["d_read"])
    d_query, query = torch.zeros(DIM, dtype=torch.float64), row.sources.queries[number]
    torch.testing.assert_close(backward.private_backward(row, drawn["d_read"], found, query, d_query), list(wanted))


def test_a_source_read_by_later_chunks_and_the_gradient_of_the_queries(drawn) -> None:
    """Rows 0 to 8 read all six sources; autograd through the definition is the truth."""
    values, queries = drawn["values"], drawn["queries"]
    d_out = torch.randn(TOKENS, 9, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    reads = torch.stack([_truth(drawn, number, 6, []) for number in range(9)], 1)
    d_values, d_queries = torch.autograd.grad(reads, (values, queries), d_out)

    v, u = values.detach(), queries.detach()
    norm = v.square().mean(-1).add(EPS).rsqrt()
    logits = all_logits(Sources(v, norm, u), [-1] * 6)
    weights, mean = logits.softmax(1), (d_out * reads.detach()).sum(-1)
    found, d_logits, d_u = torch.full_like(v, torch.nan), torch.full_like(logits, torch.nan), torch.zeros_like(u)
    backward.from_later_rows(v, weights, d_out.split([2, 4, 3], 1), mean, found, d_logits)
    for slot in range(6):
        args = v[:, slot], norm[:, slot], logits[:, slot], d_logits[:, slot], u, found[:, slot], d_u
        torch.testing.assert_close(backward.through_logits(*args), d_values[:, slot])
    torch.testing.assert_close(d_u, d_queries)


@pytest.mark.parametrize("module", [forward, backward])
def test_the_core_knows_nothing_of_autograd(module) -> None:
    tree = ast.parse(inspect.getsource(module))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not names & {"autograd", "Function", "save_for_backward", "saved_tensors"}
    assert "ctx" not in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
