"""What a strategy reads and writes, by its own verbs: against the definitions, and a plugin's."""

import re
from pathlib import Path

import pytest
import torch

from lightning_dar.model import resolve_config
from lightning_dar.plan.duration import read_traffic
from lightning_dar.plan.setting import precision_of
from lightning_dar.plan.trace import trace_strategy
from lightning_dar.residual import Residual, ResidualConfig, register_residual

DOCS = Path(__file__).parents[2] / "docs" / "depth_read.md"
BF16 = precision_of("bf16-true")


def traced(name: str, layers: int = 6, hidden: int = 16, **options):
    config = resolve_config(vocab_size=8, hidden_size=hidden, num_layers=layers, num_heads=1)
    return trace_strategy(config, ResidualConfig(name=name, options=options), BF16)


@pytest.mark.parametrize(
    ("name", "options", "sources"),
    [
        ("standard", {}, []),
        ("delta-sublayer", {}, [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),  # e and y_0 .. y_{s-1}, from site 1 on
        ("delta-block", {"num_blocks": 3}, [1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]),  # e, and each four sites one more
        ("attnres", {"num_blocks": 3}, [1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4]),  # the partial one too; finish reads
        ("attnres", {"granularity": "sublayer"}, [*range(1, 14)]),
        ("cumulative-additive", {}, [*range(1, 13)]),
    ],
)
def test_sources_of_each_read(name, options, sources):
    assert [read.sources for read in traced(name, **options).reads] == sources


def test_traffic_is_that_of_the_documents_cost_model():
    """us/token at 3.35 TB/s, bf16: the table of docs/depth_read.md, which was made without this code."""
    rows = re.findall(r"^\| (\S+) \| (\d+) \| (\d+) \| [\d.]+ \| ([\d.]+) \| \d+% \|", DOCS.read_text(), re.MULTILINE)
    assert [row[0] for row in rows] == ["220m", "533m", "1044m", "7.6b", "70B"]
    for _, hidden, layers, microseconds in rows:
        traffic = read_traffic(int(hidden), traced("delta-sublayer", int(layers), int(hidden)), "auto")
        assert traffic / 3.35e6 == pytest.approx(float(microseconds), rel=0.01)


def test_by_reference_a_read_moves_its_sources():
    trace = traced("delta-sublayer")
    assert read_traffic(16, trace, "fused") == 3 * sum(range(2, 13)) * 16 * 2


def test_state_of_a_plugin_is_seen(own_registry):
    @register_residual("two-streams")
    class TwoStreams(Residual):
        def start(self, embeddings):
            return [embeddings, embeddings.clone()]

        def read(self, state, site):
            return state[0] + state[1]

        def write(self, state, y, site):
            return [state[0] + y, state[1] - y]

        def finish(self, state):
            return state[0]

    trace = traced("two-streams")
    assert (trace.reads, trace.starts) == ((), 6 * 2 * 16 * 2)  # layers x streams x D x bytes
    assert trace.inputs == ((torch.bfloat16,),) * 13
