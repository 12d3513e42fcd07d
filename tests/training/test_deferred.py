"""A network built part by part, each sharded at once, has the weights of one that is built whole."""

from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import seed_everything
from test_parallelize import VARIANTS
from tiny import scramble, tiny_config, tiny_model
from torch import nn

from lightning_dar.checkpoint.load import Checkpoint, load_weights
from lightning_dar.checkpoint.tensors import InMemory
from lightning_dar.errors import DataError
from lightning_dar.model import build_transformer
from lightning_dar.residual import Residual, ResidualConfig, register_residual
from lightning_dar.training.parallelize import build_deferred, initialise, parallelize, read_from


class Rotated(Residual):
    """A module and a buffer of its own, drawn in the constructor and when it is initialised."""

    def __init__(self, shape):
        super().__init__(shape)
        self.mix = nn.Linear(shape.hidden_size, 2)
        self.register_buffer("angles", torch.rand(3))

    def reset_parameters(self):
        with torch.no_grad():
            self.mix.weight.copy_(torch.eye(2, self.shape.hidden_size) + torch.rand(2, 1))
            self.mix.bias.normal_()


def sharded(config, residual, mesh, fill_of=initialise):
    model = build_deferred(config, residual)
    parallelize(model, mesh=mesh, fill=fill_of(model))
    return {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        for name, tensor in model.state_dict().items()
    }


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].equal(tensor), name


@pytest.mark.parametrize("name, options", [*VARIANTS, pytest.param("rotated", {}, id="plugin")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_draws(dtype, name, options, mesh, own_registry):
    """Odd sizes and biases: the generator hands out numbers in groups."""
    register_residual("rotated")(Rotated)
    config = tiny_config(vocab_size=7, num_layers=4, qkv_bias=True, tie_embeddings=False, intermediate_size=13)
    residual = ResidualConfig(name=name, options=options)
    torch.set_default_dtype(dtype)
    try:
        seed_everything(5, verbose=False)
        expected, after = build_transformer(config, residual).state_dict(), torch.get_rng_state()
        seed_everything(5, verbose=False)
        found = sharded(config, residual, mesh)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.get_rng_state().equal(after)
    assert_equal(found, expected)


def checkpoint_of(model):
    return Checkpoint(path=Path("saved"), description={}, tensors=InMemory(model.state_dict()))


def test_weights_of_a_checkpoint_in_the_models_dtype(mesh):
    config, residual = tiny_config(tie_embeddings=False), ResidualConfig(name="delta-sublayer")
    checkpoint = checkpoint_of(scramble(tiny_model("delta-sublayer", config)).bfloat16())
    expected = build_transformer(config, residual)
    load_weights(expected, checkpoint)
    assert_equal(sharded(config, residual, mesh, partial(read_from, checkpoint=checkpoint)), expected.state_dict())


def test_a_checkpoint_that_does_not_fit(mesh):
    model = build_deferred(tiny_config(), ResidualConfig(name="delta-sublayer"))
    with pytest.raises(DataError, match="'saved': .* missing residual.gain; missing residual.query"):
        read_from(model, checkpoint_of(tiny_model("standard")))
