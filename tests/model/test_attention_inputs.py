"""Attention with separate query, key and value inputs: each goes, through its own norm, where it belongs."""

import torch
from tiny import tiny_config

from lightning_dar.model.attention import Attention, Context
from lightning_dar.model.rope import rope_angles

LENGTH = 5


def attention():
    config = tiny_config()
    cos, sin = rope_angles(torch.arange(LENGTH), config.head_dim, config.rope_theta)
    module = Attention(config, num_inputs=3)
    for norm in (module.norm, module.key_norm, module.value_norm):
        torch.nn.init.normal_(norm.weight)
    return lambda *inputs: module(inputs, Context(cos, sin, None))[0], module


def moved_positions(which, position):
    """Output positions that move when one token of one input does."""
    forward, _ = attention()
    inputs = list(torch.randn(3, 1, LENGTH, 16))
    before = forward(*inputs)
    inputs[which] = inputs[which].clone()
    inputs[which][0, position] += torch.randn(16)
    return (forward(*inputs) - before).abs().amax(-1).gt(1e-5).nonzero().flatten().tolist()


def test_a_query_moves_its_own_position_only():
    assert moved_positions(which=0, position=2) == [2]


def test_a_key_moves_all_positions_from_its_own_on():
    assert moved_positions(which=1, position=2) == [2, 3, 4]


def test_keys_do_not_matter_to_the_first_position_but_values_do():
    assert moved_positions(which=1, position=0) == [1, 2, 3, 4]
    assert moved_positions(which=2, position=0) == [0, 1, 2, 3, 4]


def test_each_input_has_its_own_norm():
    forward, module = attention()
    query, key, value = torch.randn(3, 1, LENGTH, 16)
    first = forward(query, key, value)
    for norm, inputs in {
        module.norm: (3 * query, key, value),
        module.key_norm: (query, 3 * key, value),
        module.value_norm: (query, key, 3 * value),
    }.items():
        torch.testing.assert_close(forward(*inputs), first)  # a norm takes the scale out
        with torch.no_grad():
            norm.weight *= -1
        assert not torch.allclose(forward(query, key, value), first, atol=1e-3)
        with torch.no_grad():
            norm.weight *= -1
