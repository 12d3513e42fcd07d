"""Every fast backend against the naive one: outputs and all gradients."""

import pytest
import torch

from tests.ops.problems import FAST, PATTERNS, assert_same, distance, make, projection, run


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("num_rows", [2, 3, 7, 12, 13, 24, 37, 73])
def test_every_length(backend: str, pattern: str, num_rows: int) -> None:
    problem = make(num_rows)
    assert_same(run(problem, pattern, backend), run(problem, pattern, "naive"), 1e-5)


@pytest.mark.parametrize("backend", FAST)
def test_one_source(backend: str) -> None:
    problem = make(1)
    found, wanted = run(problem, "every_row", backend), run(problem, "every_row", "naive")
    assert_same(found, wanted, 1e-5)
    assert found[1]["query"].norm() < 1e-6  # one source has weight 1 whatever the query


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 20, 50])
def test_chunks_that_divide_and_do_not(chunk_rows, pattern: str, rows: int) -> None:
    problem = make(20)
    wanted = run(problem, pattern, "naive")
    chunk_rows(rows)
    assert_same(run(problem, pattern, "two_phase"), wanted, 1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 3), (3, 1, 17), (5, 3, 33), (1, 2, 640)])
@pytest.mark.parametrize("backend", FAST)
def test_odd_shapes(chunk_rows, backend: str, shape: tuple[int, int, int]) -> None:
    chunk_rows(4)
    problem = make(11, shape, query_std=shape[-1] ** -0.5)
    assert_same(run(problem, "every_row", backend), run(problem, "every_row", "naive"), 1e-5)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("backend", FAST)
def test_gate_and_null_source(chunk_rows, backend: str, gate: bool, null: bool) -> None:
    chunk_rows(5)
    problem = make(17, gate=gate, null=null)
    wanted = run(problem, "every_row", "naive")
    assert {"gate"} & wanted[1].keys() == ({"gate"} if gate else set())
    assert_same(run(problem, "every_row", backend), wanted, 1e-5)


@pytest.mark.parametrize("backend", FAST)
def test_zero_gate_leaves_the_stream_bit_for_bit_and_has_a_gradient(backend: str) -> None:
    problem = make(9, gate=True)
    problem.gate.data.zero_()
    outputs, grads = run(problem, "every_row", backend)
    assert all(torch.equal(output, problem.stream) for output in outputs)
    assert (grads["gate"] != 0).all()
    assert_same((outputs, grads), run(problem, "every_row", "naive"), 1e-5)


@pytest.mark.parametrize("backend", FAST)
def test_blocks_of_tokens(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    problem = make(30, (3, 5, 8))
    wanted = run(problem, "every_row", "naive")
    monkeypatch.setattr("lightning_dar.ops.two_phase.forward.BLOCK_BYTES", 12 * 8 * 4 * 4)  # a few tokens at once
    assert_same(run(problem, "every_row", backend), wanted, 1e-5)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("backend", FAST)
def test_bf16_is_as_near_to_the_truth_as_naive(backend: str, pattern: str) -> None:
    problem = make(31, (2, 9, 32), dtype=torch.bfloat16, query_std=0.2)
    truth = make(31, (2, 9, 32), dtype=torch.float64, query_std=0.2)
    for exact, rounded in zip(truth.leaves.values(), problem.leaves.values(), strict=True):
        exact.data.copy_(rounded.data)
    wanted_out, wanted = run(truth, pattern, "naive")
    naive_out, naive = run(problem, pattern, "naive")
    found_out, found = run(problem, pattern, backend)
    assert found_out.dtype == torch.bfloat16
    assert distance(found_out, wanted_out) <= 1.1 * distance(naive_out, wanted_out)
    for name, exact in wanted.items():
        assert distance(found[name], exact) <= 1.1 * distance(naive[name], exact), name


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("backend", FAST)
def test_autocast_does_not_round_the_read(chunk_rows, backend: str, pattern: str) -> None:
    chunk_rows(5)
    problem = make(17)
    wanted = run(problem, pattern, "naive")
    with torch.autocast("cpu", torch.bfloat16):
        assert (problem.query @ problem.query.T).dtype == torch.bfloat16
        assert_same(run(problem, pattern, backend), wanted, 1e-5)


@pytest.mark.parametrize("backend", FAST)
def test_saturated_softmax(chunk_rows, backend: str) -> None:
    chunk_rows(4)
    problem = make(13, query_std=1e4)
    assert_same(run(problem, "every_row", backend), run(problem, "every_row", "naive"), 1e-5)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_zero_sources(chunk_rows, backend: str, pattern: str) -> None:
    chunk_rows(4)
    problem = make(13)
    for i in (0, 1, 5, 12):
        problem.sources[i].data.zero_()
    assert_same(run(problem, pattern, backend), run(problem, pattern, "naive"), 1e-5)


@pytest.mark.parametrize("backend", FAST)
def test_mixed_dtypes_promote_like_naive(backend: str) -> None:
    problem = make(5)
    mixed = [problem.sources[0], *(source.bfloat16() for source in problem.sources[1:])]
    outputs = {}
    for name in ("naive", backend):
        history = _open(problem, name)
        for row, source in enumerate(mixed):
            history = history.append(source, after=row - 1)
        outputs[name] = history.read(4, stream=problem.stream)
    assert outputs[backend].dtype == outputs["naive"].dtype == torch.float32
    torch.testing.assert_close(outputs[backend], outputs["naive"])


@pytest.mark.parametrize("backend", FAST)
def test_rows_that_are_skipped_or_unused(chunk_rows, backend: str) -> None:
    """Rows 4 to 7 (a whole chunk) are not read, and what rows 2 and 9 read has no part in the loss."""
    chunk_rows(4)
    problem = make(13)

    def outputs(name: str) -> list[torch.Tensor]:
        history, out = _open(problem, name), []
        for row, source in enumerate(problem.sources):
            history = history.append(source, after=row - 1)
            if row in range(4, 8):
                continue
            read = history.read(row, stream=problem.stream)
            if row not in (2, 9):
                out.append(read)
        return out

    def grads(name: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        out = torch.stack(outputs(name))
        found = torch.autograd.grad(out, list(problem.leaves.values()), projection(out))
        return out.detach(), dict(zip(problem.leaves, found, strict=True))

    with _poisoned():
        found = grads(backend)
    assert_same(found, grads("naive"), 1e-5)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("backend", FAST)
def test_nothing_uninitialised_is_used(chunk_rows, backend: str, pattern: str) -> None:
    chunk_rows(5)
    problem = make(18, null=pattern == "every_row", gate=pattern == "every_row")
    wanted = run(problem, pattern, "naive")
    with _poisoned():
        assert torch.empty(3).isnan().all()
        assert_same(run(problem, pattern, backend), wanted, 1e-5)


@pytest.mark.parametrize("backend", FAST)
def test_gradcheck_in_float64(chunk_rows, backend: str) -> None:
    chunk_rows(2)
    problem = make(5, (1, 2, 3), dtype=torch.float64, gate=True, null=True)

    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        return torch.stack(PATTERNS["every_row"](problem, backend))

    assert torch.autograd.gradcheck(loss, tuple(problem.leaves.values()))


@pytest.mark.parametrize("backend", FAST)
def test_weights_are_those_of_naive(backend: str) -> None:
    problem = make(15, null=True)
    histories = [_open(problem, name) for name in ("naive", backend)]
    for row, source in enumerate(problem.sources):
        histories = [history.append(source, after=row - 1) for history in histories]
    null = problem.null[14].expand_as(problem.stream)
    wanted, found = (history.lay_open(14, null=null, current=problem.stream)[0] for history in histories)
    assert found.shape == (2, 3, 17) and not found.requires_grad
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 3))


def _open(problem, backend: str):
    from lightning_dar.ops import open_history

    return open_history(problem.query, problem.gain, 1e-6, backend=backend)


class _poisoned:
    """Fills what `torch.empty` and its like return with NaN."""

    def __enter__(self) -> None:
        self.fill = torch.utils.deterministic.fill_uninitialized_memory
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = True

    def __exit__(self, *exception: object) -> None:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = self.fill
