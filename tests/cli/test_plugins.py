"""A strategy of one's own, from a module outside the package, through every subcommand."""

import sys
from pathlib import Path

import pytest

from lightning_dar.model import mlp
from lightning_dar.residual import registry

PLUGIN = '''
"""Half of every delta stays out of the stream."""
from lightning_dar import Residual, register_residual


@register_residual("halved")
class Halved(Residual):
    def __init__(self, shape, *, share: float = 0.5):
        super().__init__(shape)
        self.share = share

    def start(self, embeddings):
        return embeddings

    def read(self, state, site):
        return state

    def write(self, state, y, site):
        return state + self.share * y

    def finish(self, state):
        return state
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "my_variant.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    yield "my_variant"
    sys.modules.pop("my_variant", None)


def forget(plugin: str) -> None:
    """As in a new process: the plugin has not been imported."""
    registry._REGISTRY.pop("halved")
    sys.modules.pop(plugin)


def test_a_plugin_trains_validates_and_is_named_when_it_is_missing(plugin, fit, run):
    fit("--plugins", plugin, "--model.residual.name=halved", "--model.residual.options.share=0.25")
    checkpoint = Path("runs/test/version_0/checkpoints/last.ckpt")
    forget(plugin)
    status, out, err = run("validate", "--ckpt_path", checkpoint, "--plugins", plugin)
    assert status == 0, err
    assert "val/perplexity" in out

    forget(plugin)
    status, _, err = run("validate", "--ckpt_path", checkpoint)
    assert status == 2
    assert "needs residual strategy 'halved' of plugin 'my_variant': add --plugins my_variant" in err


def test_a_kind_of_mlp_trains_validates_and_is_named_when_it_is_missing(fit, run, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "model")
    monkeypatch.setattr(mlp, "_KINDS", dict(mlp._KINDS))
    fit("--plugins=experts", "--model.mlp.kind=experts", "--model.mlp.options.num_experts=2")
    checkpoint = Path("runs/test/version_0/checkpoints/last.ckpt")
    for command in (
        ("validate", "--ckpt_path", checkpoint),
        ("fit", "--ckpt_path", checkpoint, "--trainer.max_steps=6"),
    ):
        monkeypatch.delitem(mlp._KINDS, "experts")
        sys.modules.pop("experts")
        status, _, err = run(*command)
        assert status == 2 and "MLP kind 'experts' of plugin 'experts': add --plugins experts" in err
        status, _, err = run(*command, "--plugins=experts")
        assert status == 0, err
    status, _, err = run(*command, "--plugins=experts", "--model.mlp.options.num_experts=3")
    assert (
        status == 2 and "model.mlp={'kind': 'experts', 'options': {'num_experts': 3, 'weight': 0.1}}: the check" in err
    )
    sys.modules.pop("experts")


def test_a_resumed_run_needs_its_plugin_again(plugin, fit, run):
    fit("--plugins", plugin, "--model.residual.name=halved")
    resume = ("fit", "--ckpt_path", "runs/test/version_0/checkpoints/last.ckpt", "--trainer.max_steps=6")
    forget(plugin)
    status, _, err = run(*resume)
    assert status == 2
    assert "add --plugins my_variant" in err
    status, _, err = run(*resume, "--plugins", plugin)
    assert status == 0, err


def test_plugins_from_a_config_file(plugin, fit, tmp_path):
    (tmp_path / "variant.yaml").write_text("plugins: [my_variant]\nmodel: {residual: {name: halved}}\n")
    fit("--config", "variant.yaml")
