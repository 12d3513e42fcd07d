"""torch.compile of the sublayers: their graphs stay whole, and the read between them is opaque."""

import pytest
import torch

from lightning_dar.model import build_transformer, resolve_config
from lightning_dar.residual import ResidualConfig, available_residuals
from tests.ops.problems import FAST, assert_same, projection


def _result(model: torch.nn.Module, parameters: dict[str, torch.nn.Parameter]):
    ids = torch.randint(23, (2, 6), generator=torch.Generator().manual_seed(0))
    logits = model(ids)
    grads = torch.autograd.grad(logits, list(parameters.values()), projection(logits))
    return logits.detach(), dict(zip(parameters, grads, strict=True))


def _model(strategy: str, backend: str) -> torch.nn.Module:
    torch.manual_seed(0)
    options = {"num_blocks": 2} if strategy == "attnres" else {}
    config = resolve_config(vocab_size=23, hidden_size=16, num_layers=3, num_heads=2, intermediate_size=24)
    return build_transformer(config, ResidualConfig(name=strategy, options=options, depth_read=backend))


@pytest.mark.parametrize("strategy", ["delta-sublayer", "attnres"])
@pytest.mark.parametrize("backend", FAST)
def test_sublayers_compile_without_a_graph_break(strategy: str, backend: str) -> None:
    torch._dynamo.reset()
    model = _model(strategy, backend)
    parameters = dict(model.named_parameters())
    wanted = _result(model, parameters)
    for sublayer in model.sublayers:
        sublayer.compile(backend="aot_eager", fullgraph=True)
    assert_same(_result(model, parameters), wanted, 1e-5)


@pytest.mark.parametrize("strategy", ["delta-sublayer", "attnres"])
@pytest.mark.parametrize("backend", FAST)
def test_a_compiled_model_never_traces_into_a_read(strategy: str, backend: str) -> None:
    torch._dynamo.reset()
    model = _model(strategy, backend)
    parameters = dict(model.named_parameters())
    wanted = _result(model, parameters)
    traced: list[str] = []

    def record(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        traced.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    assert_same(_result(torch.compile(model, backend=record), parameters), wanted, 1e-5)
    assert any("linear" in target for target in traced)
    assert not [target for target in traced if "bmm" in target or "softmax" in target or "norm_except" in target]


@pytest.mark.parametrize("strategy", available_residuals())
def test_no_site_is_compiled_by_itself(strategy: str) -> None:
    """A function may be compiled twice, the second time for any size; a third would be one a site or layer."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    options = {"num_blocks": 3} if strategy in ("attnres", "delta-block") else {}
    sizes = resolve_config(vocab_size=23, hidden_size=8, num_layers=6, num_heads=2, intermediate_size=8)
    model = build_transformer(sizes, ResidualConfig(name=strategy, options=options))
    ids = torch.randint(23, (2, 6))
    wanted = model(ids)
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        compiled = torch.compile(model, backend="eager", fullgraph=strategy == "standard")
        torch.testing.assert_close(compiled(ids), wanted)
    torch._dynamo.reset()
