"""Gates and query gradients; norms are compared in `test_measuring.py`."""

import copy

import lightning as L
import pytest
import torch
from torch.nn import functional as F

from lightning_dar.callbacks import BranchStrength
from runs import Scramble, events, fit, language_model


class Keep(L.Callback):
    """The network before each step, and the micro-batches of all steps."""

    def __init__(self):
        self.models, self.batches = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batches.append(batch)
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self.models.append(copy.deepcopy(pl_module.model))


@pytest.mark.parametrize("clip", [None, 1e-3])
def test_query_gradients_are_those_of_all_micro_batches_before_clipping(clip, tmp_path):
    keep, settings = Keep(), {"accumulate_grad_batches": 2, "gradient_clip_val": clip, "limit_val_batches": 0}
    run = fit(tmp_path, Scramble(), keep, BranchStrength(every_n_steps=2), max_steps=3, **settings)
    model, logged = keep.models[1], events(run)
    losses = [
        F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["targets"].flatten())
        for batch in keep.batches[2:4]
    ]
    (gradient,) = torch.autograd.grad(sum(losses) / 2, model.residual.query)
    for site in range(6):
        (event,) = logged.Scalars(f"branch_sites/query_grad_norm_{site:02d}")
        assert (event.step, event.value) == (1, pytest.approx(gradient[site].norm().item(), rel=1e-4))
    total = logged.Scalars("branch/query_grad_norm")[0].value
    assert total == pytest.approx(gradient.norm().item(), rel=1e-4)


def test_gates_are_logged_where_there_are_any(tmp_path):
    gated = language_model("delta-block", num_blocks=3, gate="alpha")
    tags = events(fit(tmp_path, Scramble(), BranchStrength(every_n_steps=1), model=gated, max_steps=1))
    for site in range(1, 6):
        assert f"branch_sites/gate_{site:02d}" in tags.Tags()["scalars"]
    gates = gated.model.residual.gate
    logged = [tags.Scalars(f"branch_sites/gate_{site:02d}")[0].value for site in range(1, 6)]
    assert logged == pytest.approx(gates[1:].tolist(), abs=1e-4), "one step at the start of warmup moves them little"
    without = events(fit(tmp_path, BranchStrength(every_n_steps=1), max_steps=1))
    assert not [tag for tag in without.Tags()["scalars"] if "gate" in tag]


def test_replacement_has_read_norms_and_no_ratio(tmp_path):
    model = language_model("attnres", granularity="sublayer")
    run = fit(tmp_path, BranchStrength(every_n_steps=1), model=model, max_steps=1)
    tags = [tag for tag in events(run).Tags()["scalars"] if tag.startswith("branch_sites/")]
    assert {tag.split("/")[1][:-3] for tag in tags} == {"norm", "query_grad_norm"}
    assert "branch_sites/norm_06" in tags, "the final read"


def test_a_frozen_query_has_no_gradient(tmp_path):
    class Freeze(L.Callback):
        def on_fit_start(self, trainer, pl_module):
            pl_module.model.residual.query.requires_grad_(False)

    run = fit(tmp_path, Freeze(), BranchStrength(every_n_steps=1), max_steps=1)
    tags = events(run).Tags()["scalars"]
    assert "branch/strength" in tags
    assert not [tag for tag in tags if "grad" in tag]
