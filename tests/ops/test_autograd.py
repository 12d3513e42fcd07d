"""How the fast backends behave under autograd: what a training run, or a user's experiment, may ask of them."""

import gc

import pytest
import torch

from benchmarks.held import live_tensors
from lightning_dar.errors import UsageError
from lightning_dar.model import Transformer, build_transformer, resolve_config
from lightning_dar.ops import open_history
from lightning_dar.residual import ResidualConfig
from tests.ops.problems import EPS, FAST, assert_same, distance, every_row, make, projection, run

VARIANTS = {
    "delta-sublayer": {"gate": "alpha", "null_source": True},
    "delta-block": {"num_blocks": 3},
    "attnres": {"num_blocks": 2},
    "cumulative-additive": {},
    "cumulative-replacement": {},
}


@pytest.fixture(autouse=True)
def _small_chunks(chunk_rows) -> None:
    chunk_rows(5)


def model_of(strategy: str, backend: str, **options: object) -> Transformer:
    torch.manual_seed(3)
    config = resolve_config(vocab_size=23, hidden_size=16, num_layers=7, num_heads=2, intermediate_size=24)
    options = {**VARIANTS[strategy], **options}
    model = build_transformer(config, ResidualConfig(name=strategy, options=options, depth_read=backend))
    with torch.no_grad():
        for parameter in model.residual.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def ids_of(seed: int = 0) -> torch.Tensor:
    return torch.randint(23, (2, 6), generator=torch.Generator().manual_seed(seed))


def live_buffers() -> list[torch.Tensor]:
    """The live tensors of the form [M, n, D] that a depth read's buffers have for `ids_of`."""
    gc.collect()
    return [tensor for tensor in live_tensors() if tensor.dim() == 3 and tensor.shape[0] == 12]


def result(model: Transformer, ids: torch.Tensor | None = None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, and the gradients of every parameter that takes one."""
    model.zero_grad(set_to_none=True)
    logits = model(ids_of() if ids is None else ids)
    (logits * projection(logits)).sum().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), grads


@pytest.mark.parametrize("strategy", VARIANTS)
@pytest.mark.parametrize("backend", FAST)
def test_every_strategy(strategy: str, backend: str) -> None:
    assert_same(result(model_of(strategy, backend)), result(model_of(strategy, "naive")), 1e-5)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("options", [{"granularity": "sublayer"}, {"num_blocks": 7}])
def test_attnres_variants(backend: str, options: dict[str, object]) -> None:
    found, wanted = (result(model_of("attnres", name, **options)) for name in (backend, "naive"))
    assert_same(found, wanted, 1e-5)


@pytest.mark.parametrize("backend", FAST)
def test_released_block_deltas(backend: str) -> None:
    found, wanted = (result(model_of("delta-block", name, block_delta="released")) for name in (backend, "naive"))
    assert_same(found, wanted, 1e-5)


@pytest.mark.parametrize("strategy", VARIANTS)
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("trained", ["routing", "base"])
def test_frozen_parameters(strategy: str, backend: str, trained: str) -> None:
    grads = {}
    for name in ("naive", backend):
        model = model_of(strategy, name)
        for parameter_name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter_name.startswith("residual") == (trained == "routing"))
        grads[name] = result(model)
    assert_same(grads[backend], grads["naive"], 1e-5)
    assert all(name.startswith("residual") == (trained == "routing") for name in grads[backend][1])


@pytest.mark.parametrize("backend", FAST)
def test_frozen_base_and_queries_need_no_backward(backend: str) -> None:
    model = model_of("delta-sublayer", backend).requires_grad_(False)
    assert not model(ids_of()).requires_grad


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("strategy", VARIANTS)
def test_no_grad_gives_the_same_logits_and_keeps_nothing(backend: str, strategy: str) -> None:
    model = model_of(strategy, backend)
    with torch.no_grad():
        logits = model(ids_of())
    assert torch.equal(logits, model(ids_of()).detach())
    with torch.inference_mode():
        torch.testing.assert_close(model(ids_of()), logits)


@pytest.mark.parametrize("backend", FAST)
def test_two_forwards_before_the_backwards(backend: str) -> None:
    model = model_of("delta-sublayer", backend)
    first, second = result(model, ids_of(1))[1], result(model, ids_of(2))[1]
    model.zero_grad(set_to_none=True)
    losses = [(logits * projection(logits)).sum() for logits in (model(ids_of(1)), model(ids_of(2)))]
    found = torch.autograd.grad(losses[1], list(model.parameters()))  # in either order
    for (name, _), grad in zip(model.named_parameters(), found, strict=True):
        assert torch.equal(grad, second[name]), name
    found = torch.autograd.grad(losses[0], list(model.parameters()))
    for (name, _), grad in zip(model.named_parameters(), found, strict=True):
        assert torch.equal(grad, first[name]), name


@pytest.mark.parametrize("backend", FAST)
def test_one_backward_through_two_forwards(backend: str) -> None:
    model = model_of("delta-sublayer", backend)
    first, second = result(model, ids_of(1))[1], result(model, ids_of(2))[1]
    model.zero_grad(set_to_none=True)
    sum((logits * projection(logits)).sum() for logits in (model(ids_of(1)), model(ids_of(2)))).backward()
    for name, parameter in model.named_parameters():
        assert distance(parameter.grad, first[name] + second[name]) < 1e-5, name


@pytest.mark.parametrize("backend", FAST)
def test_gradients_accumulate(backend: str) -> None:
    model = model_of("delta-block", backend)
    first, second = result(model, ids_of(1))[1], result(model, ids_of(2))[1]
    model.zero_grad(set_to_none=True)
    for seed in (1, 2):
        logits = model(ids_of(seed))
        (logits * projection(logits)).sum().backward()
    for name, parameter in model.named_parameters():
        assert distance(parameter.grad, first[name] + second[name]) < 1e-6, name


@pytest.mark.parametrize("backend", FAST)
def test_a_graph_can_be_run_backward_twice(backend: str) -> None:
    problem = make(14, gate=True)
    outputs = torch.stack(every_row(problem, backend))
    leaves = list(problem.leaves.values())
    once = torch.autograd.grad(outputs, leaves, projection(outputs), retain_graph=True)
    again = torch.autograd.grad(outputs, leaves, projection(outputs))
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))


@pytest.mark.parametrize("backend", FAST)
def test_a_backward_that_broke_off_leaves_no_trace(backend: str) -> None:
    problem = make(14)
    _, wanted = run(problem, "every_row", "naive")
    outputs = torch.stack(every_row(problem, backend))

    def break_off(grad: torch.Tensor) -> None:
        raise KeyboardInterrupt

    hook = problem.sources[7].register_hook(break_off)
    with pytest.raises(KeyboardInterrupt):
        torch.autograd.grad(outputs, list(problem.leaves.values()), projection(outputs), retain_graph=True)
    hook.remove()
    found = torch.autograd.grad(outputs, list(problem.leaves.values()), projection(outputs))
    for name, grad in zip(problem.leaves, found, strict=True):
        assert distance(grad, wanted[name]) < 1e-5, name


@pytest.mark.parametrize("backend", FAST)
def test_a_backward_to_one_source_only(backend: str) -> None:
    problem = make(14)
    _, wanted = run(problem, "every_row", "naive")
    outputs = torch.stack(every_row(problem, backend))
    (grad,) = torch.autograd.grad(outputs, [problem.sources[6]], projection(outputs), retain_graph=True)
    assert distance(grad, wanted["source 6"]) < 1e-5
    (grad,) = torch.autograd.grad(outputs, [problem.query], projection(outputs))
    assert distance(grad, wanted["query"]) < 1e-5


@pytest.mark.parametrize("backend", FAST)
def test_double_backward_is_refused(backend: str) -> None:
    problem = make(6)
    outputs = torch.stack(every_row(problem, backend))
    with pytest.raises(RuntimeError, match=f"'{backend}' has no second derivative.*depth_read to naive"):
        torch.autograd.grad(outputs.sum(), [problem.sources[2]], create_graph=True)


@pytest.mark.parametrize("backend", FAST)
def test_repeats_are_bit_for_bit(backend: str) -> None:
    model = model_of("delta-sublayer", backend)
    logits, grads = result(model)
    for _ in range(3):
        logits_again, grads_again = result(model)
        assert torch.equal(logits, logits_again)
        assert all(torch.equal(grads[name], grads_again[name]) for name in grads)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("strategy", VARIANTS)
def test_checkpointed_sublayers(backend: str, strategy: str) -> None:
    model = model_of(strategy, backend)
    wanted = result(model)
    for sublayer in model.sublayers:
        sublayer.forward = _checkpointed(sublayer.forward)
    assert_same(result(model), wanted, 1e-6)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("strategy", VARIANTS)
def test_checkpointed_model(backend: str, strategy: str) -> None:
    model = model_of(strategy, backend)
    wanted = result(model)
    model.forward = _checkpointed(model.forward)
    assert_same(result(model), wanted, 1e-6)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("sites", [1, 3, 4])
def test_checkpointed_stretches_of_the_loop(backend: str, sites: int) -> None:
    """Reads and writes inside the checkpoint: a recomputation finds phase one gone and does it again."""
    problem = make(17)

    def stretch(history, first: int):
        outputs = []
        for row in range(first, min(first + sites, 17)):
            history = history.append(problem.sources[row] * 1.5, after=row - 1)
            outputs.append(history.read(row, stream=problem.stream).sin())
        return history, torch.stack(outputs)

    def grads(wrap) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        history, outputs = open_history(problem.query, problem.gain, EPS, backend=backend), []
        for first in range(0, 17, sites):
            history, part = wrap(stretch)(history, first)
            outputs.append(part)
        out = torch.cat(outputs)
        found = torch.autograd.grad(out, list(problem.leaves.values()), projection(out))
        return out.detach(), dict(zip(problem.leaves, found, strict=True))

    assert_same(grads(_checkpointed), grads(lambda function: function), 1e-6)


@pytest.mark.parametrize("backend", FAST)
def test_nothing_is_kept_after_the_backward(backend: str) -> None:
    """Not even while the loss, and so the graph's skeleton, is alive."""
    earlier = live_buffers()  # what tests before this one may have left
    model = model_of("delta-sublayer", backend)
    logits = model(ids_of())
    loss = (logits * projection(logits)).sum()
    loss.backward()
    known = {id(tensor) for tensor in earlier}
    assert not [tensor for tensor in live_buffers() if id(tensor) not in known], loss


def test_a_history_is_continued_once() -> None:
    problem = make(4)
    history = open_history(problem.query, problem.gain, EPS, backend="two_phase")
    history = history.append(problem.sources[0])
    history.append(problem.sources[1], after=0)
    with pytest.raises(RuntimeError, match="continued twice"):
        history.append(problem.sources[2], after=0)


def test_an_older_history_is_not_read() -> None:
    problem = make(4)
    older = open_history(problem.query, problem.gain, EPS, backend="two_phase").append(problem.sources[0])
    older.append(problem.sources[1], after=0)
    with pytest.raises(RuntimeError, match="row 2 must read all"):
        older.read(2)


def test_a_row_is_read_once() -> None:
    problem = make(4)
    history = open_history(problem.query, problem.gain, EPS, backend="two_phase").append(problem.sources[0])
    with pytest.raises(RuntimeError, match="row 1 .* was read twice"):
        (history.read(1) + history.read(1)).sum().backward()


def test_more_sources_than_announced() -> None:
    problem = make(4)
    history = open_history(problem.query, problem.gain, EPS, backend="two_phase", max_sources=1)
    history = history.append(problem.sources[0])
    with pytest.raises(RuntimeError, match="opened for 1 sources"):
        history.append(problem.sources[1], after=0)


def test_unavailable_backends_are_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="model.residual.depth_read: fla needs"):
        model_of("delta-sublayer", "fla")
    with pytest.raises(UsageError, match="unknown backend 'twophase'; known: auto, naive, fused, two_phase, fla"):
        model_of("delta-sublayer", "twophase")


def test_the_choice_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    from lightning_dar.ops import backends

    backends._log_choice.cache_clear()
    model = model_of("delta-sublayer", "auto")
    with caplog.at_level("INFO", logger="lightning_dar"):
        model(ids_of())
        model(ids_of())
    assert [r.getMessage() for r in caplog.records] == ["depth reads: two_phase (model.residual.depth_read is auto)"]


def _checkpointed(function):
    return lambda *args: torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)
