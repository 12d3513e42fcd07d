"""Every strategy learns: 60 steps on one batch drive the loss below 0.1."""

from functools import partial

import pytest
from tiny import VOCAB, tiny_config, tiny_model, tokens, variant

from lightning_dar.residual import available_residuals
from lightning_dar.training.loss import chunked_cross_entropy
from lightning_dar.training.optimizer import OptimizerConfig, build_optimizer

VARIANTS = [
    *map(variant, available_residuals()),
    variant("attnres", granularity="sublayer"),
    variant("delta-block", block_delta="released", num_blocks=2),
    variant("delta-sublayer", gate="alpha"),
    variant("delta-sublayer", null_source=True),
]


@pytest.mark.parametrize("name, options", VARIANTS)
def test_one_batch_is_learned(name, options):
    model = tiny_model(name, tiny_config(hidden_size=64, intermediate_size=128), **options)
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig(lr=1e-2))
    batch = tokens(batch=4, length=17, vocab=VOCAB)
    inputs, targets = batch[:, :-1], batch[:, 1:]
    start = {key: value.clone() for key, value in model.residual.named_parameters()}

    def step():
        optimizer.zero_grad()
        loss = model(inputs, head=partial(chunked_cross_entropy, targets=targets)) / targets.numel()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = [step() for _ in range(60)]
    assert losses[0] > 3 and losses[-1] < 0.1
    for key, value in model.residual.named_parameters():
        assert not value.equal(start[key]), f"{key} did not learn"
