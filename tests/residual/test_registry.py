"""Finding strategies by name, checking their options, and bringing in plugins."""

import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from lightning_dar.errors import UsageError
from lightning_dar.residual import (
    Residual,
    ResidualConfig,
    Shape,
    available_residuals,
    build_residual,
    load_plugins,
    register_residual,
    registry,
)
from lightning_dar.residual.delta_block import DeltaBlock
from lightning_dar.residual.registry import residual_class

SHAPE = Shape(num_layers=4, hidden_size=8)
SHIPPED = {
    "standard",
    "attnres",
    "delta-sublayer",
    "delta-block",
    "cumulative-additive",
    "cumulative-replacement",
}
PLUGIN = """
from lightning_dar.residual import Residual, register_residual


@register_residual("{name}")
class Plugin(Residual):
    def __init__(self, shape):
        super().__init__(shape)
"""

pytestmark = pytest.mark.usefixtures("own_registry")


class Plain(Residual):
    def __init__(self, shape):
        super().__init__(shape)


class WithOptions(Residual):
    def __init__(self, shape, *, scale: float, mix: dict[str, int] | None = None):
        super().__init__(shape)
        self.scale, self.mix = scale, mix


class Inheriting(DeltaBlock):
    def __init__(self, shape, *, extra: int = 1, **options):
        super().__init__(shape, **options)
        self.extra = extra


def build(name, **options):
    return build_residual(ResidualConfig(name=name, options=options), SHAPE)


@pytest.fixture
def plugin_module(tmp_path, monkeypatch):
    """Writes an importable module, gone after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(module, text):
        (tmp_path / f"{module}.py").write_text(text)
        written.append(module)
        return module

    yield write
    for module in written:
        sys.modules.pop(module, None)


@pytest.fixture
def installed(monkeypatch):
    """Pretends that packages with these entry points are installed: name -> "module:object"."""

    def install(**points):
        group = registry.ENTRY_POINT_GROUP
        found = [EntryPoint(name.replace("_", "-"), value, group) for name, value in points.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in found if p.group == group])

    return install


def test_shipped_names():
    assert set(available_residuals()) == SHIPPED


def test_unknown_name_lists_the_known_and_suggests_the_nearest():
    with pytest.raises(UsageError, match=r"unknown strategy 'delta-blok'.*Did you mean 'delta-block'") as caught:
        build("delta-blok")
    assert all(name in str(caught.value) for name in SHIPPED)


def test_unknown_name_like_no_other_suggests_nothing():
    with pytest.raises(UsageError, match="unknown strategy 'zzz'") as caught:
        build("zzz")
    assert "Did you mean" not in str(caught.value)


def test_unknown_option_names_the_strategys_options():
    with pytest.raises(UsageError, match="strategy 'delta-block' has no option 'num_block'") as caught:
        build("delta-block", num_block=3)
    options = "num_blocks, block_delta, gate, null_source, query_init"
    assert str(caught.value).endswith(f"its options are {options}")


@pytest.mark.parametrize("option", ["num_blocks", "shape"])
def test_standard_has_no_options(option):
    with pytest.raises(UsageError, match=f"strategy 'standard' has no option '{option}'; it has none"):
        build("standard", **{option: 3})


@pytest.mark.parametrize(
    "option, value, takes",
    [
        ("num_blocks", "four", "int"),
        ("num_blocks", 2.5, "int"),
        ("num_blocks", True, "int"),
        ("num_blocks", None, "int"),
        ("gate", "beta", r"Literal\['none', 'alpha'\]"),
        ("block_delta", 1, r"Literal\['definition', 'released'\]"),
        ("null_source", 1, "bool"),
        ("query_init", "ones", r"Literal\['zeros', 'normal'\]"),
    ],
)
def test_option_of_the_wrong_type(option, value, takes):
    with pytest.raises(UsageError, match=rf"options\.{option}: strategy 'delta-block' takes {takes}, not {value!r}"):
        build("delta-block", **{option: value})


@pytest.mark.parametrize("name", ["delta-block", "attnres"])
@pytest.mark.parametrize("num_blocks", [-1, 0, 5])
def test_num_blocks_outside_the_layers(name, num_blocks):
    with pytest.raises(UsageError, match=rf"num_blocks={num_blocks}: must be from 1 to .*4$"):
        build(name, num_blocks=num_blocks)


@pytest.mark.parametrize("num_blocks", [1, 4])
def test_num_blocks_at_its_limits(num_blocks):
    assert build("delta-block", num_blocks=num_blocks).sites_per_block == 8 // num_blocks


def test_options_of_a_plugin():
    register_residual("mine")(WithOptions)
    residual = build("mine", scale=2, mix={"a": 1})
    assert (residual.scale, residual.mix) == (2.0, {"a": 1})


def test_missing_option_of_a_plugin_is_named():
    register_residual("mine")(WithOptions)
    with pytest.raises(UsageError, match=r"strategy 'mine'.*scale"):
        build("mine", mix={"a": 1})


def test_inherited_options_of_a_plugin():
    register_residual("mine")(Inheriting)
    residual = build("mine", num_blocks=2, extra=3)
    assert (residual.sites_per_block, residual.extra) == (4, 3)
    with pytest.raises(UsageError, match=r"options\.num_blocks: strategy 'mine' takes int, not 'four'"):
        build("mine", num_blocks="four")


def test_name_taken():
    with pytest.raises(UsageError, match=f"'attnres' of {__name__} is already registered by lightning_dar"):
        register_residual("attnres")(Plain)
    assert residual_class("attnres").__module__ == "lightning_dar.residual.attnres"


def test_the_same_class_may_register_again():
    register_residual("mine")(Plain)
    assert register_residual("mine")(Plain) is residual_class("mine") is Plain


@pytest.mark.parametrize("other", [torch.nn.Identity, Plain(SHAPE), "standard"], ids=["module", "instance", "text"])
def test_only_a_residual_can_be_registered(other):
    with pytest.raises(UsageError, match=r"'mine'.*is not a subclass of lightning_dar\.Residual"):
        register_residual("mine")(other)
    assert "mine" not in available_residuals()


def test_plugin_module(plugin_module):
    load_plugins([plugin_module("a_residual_plugin", PLUGIN.format(name="from-module"))])
    assert "from-module" in available_residuals()
    assert build("from-module").__class__.__module__ == "a_residual_plugin"


def test_plugin_module_that_does_not_exist():
    with pytest.raises(UsageError, match=r"plugin 'no_such\.module' cannot be imported.*no_such"):
        load_plugins(["no_such.module"])


def test_entry_point_names_a_class(plugin_module, installed):
    installed(from_package=plugin_module("a_package", "from test_registry import Plain\n") + ":Plain")
    assert set(available_residuals()) == {*SHIPPED, "from-package"}
    assert isinstance(build("from-package"), Plain)


def test_entry_point_names_a_module_that_registers(plugin_module, installed):
    installed(from_package=plugin_module("a_package", PLUGIN.format(name="from-package")))
    assert residual_class("from-package").__module__ == "a_package"


def test_entry_point_cannot_replace_a_shipped_strategy(plugin_module, installed):
    installed(standard=plugin_module("a_package", "from test_registry import Plain\n") + ":Plain")
    assert residual_class("standard").__module__ == "lightning_dar.residual.standard"
    assert set(available_residuals()) == SHIPPED


def test_checkpoint_names_the_plugin_that_is_missing():
    with pytest.raises(UsageError, match=r"'mine' of plugin 'my_lab\.routing': add --plugins my_lab\.routing"):
        residual_class("mine", plugin="my_lab.routing")


def test_checkpoint_of_a_shipped_strategy_needs_no_plugin():
    with pytest.raises(UsageError, match="unknown strategy 'mine'"):
        residual_class("mine", plugin="lightning_dar.residual.mine")
    assert residual_class("attnres", plugin="gone").__name__ == "AttnRes"
