"""When the alarm rings, and when it must not."""

import warnings

import lightning as L
import pytest
import torch

from lightning_dar.callbacks import RoutingCollapse, RoutingSharpness
from lightning_dar.errors import UsageError
from lightning_dar.training import OptimizerConfig
from lightning_dar.training.finite import FiniteSteps
from runs import Scramble, fit, language_model


def alarms(folder, *callbacks, name="delta-sublayer", **settings):
    """Warnings of collapse in a run that learns nothing, and the trainer."""
    module = language_model(name)
    module.optimizer = OptimizerConfig(lr=0.0, routing_lr=0.0, warmup_steps=2)
    module.finite_steps = FiniteSteps("skip", 10)  # queries that are no numbers would end the run
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = fit(folder, *callbacks, model=module, limit_val_batches=0, **settings)
    return [str(w.message) for w in caught if "routing has collapsed" in str(w.message)], trainer


class Query(L.Callback):
    """Sets the queries before some steps: 0 is uniform, 1000 picks a source, by site."""

    def __init__(self, by_step):
        self.by_step = by_step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        for site, scale in self.by_step.get(trainer.global_step + 1, {}).items():
            with torch.no_grad():
                pl_module.model.residual.query[site] = scale * torch.ones(16)


def test_uniform_routing_is_reported_once_after_warmup_and_names_the_sites(tmp_path):
    found, trainer = alarms(tmp_path, RoutingCollapse(every_n_steps=1, patience=2))
    assert len(found) == 1
    assert "from step 3 to 4 the deepest third" in found[0], "the optimizer's warmup has two steps"
    assert "sharpness 0.183, uniform is 0.183" in found[0]  # (1/5 + 1/6) / 2
    assert found[0].endswith("sites 4, 5")
    assert trainer.global_step == 6


def test_it_stops_by_option(tmp_path):
    found, trainer = alarms(tmp_path, RoutingCollapse(every_n_steps=1, patience=2, warmup_steps=0, stop=True))
    assert found[0].endswith("sites 4, 5; training stops")
    assert trainer.global_step == 2


def test_only_sites_near_uniform_are_named(tmp_path):
    query = Query({1: {5: 1000}})
    found, _ = alarms(tmp_path, query, RoutingCollapse(every_n_steps=1, patience=1, warmup_steps=0, margin=0.5))
    assert found[0].endswith("sites 4")


def test_it_rings_again_after_a_recovery(tmp_path):
    query = Query({3: {4: 1000, 5: 1000}, 4: {4: 0, 5: 0}})
    found, _ = alarms(tmp_path, query, RoutingCollapse(every_n_steps=1, patience=2, warmup_steps=0))
    assert ["from step 1 to 2" in found[0], "from step 4 to 5" in found[1]] == [True, True]


@pytest.mark.parametrize("name", ["standard", "delta-sublayer"])
def test_it_is_silent_where_nothing_is_routed_and_where_routing_is_sharp(name, tmp_path):
    callbacks = [Scramble(), RoutingSharpness(), RoutingCollapse(every_n_steps=1, patience=1, warmup_steps=0)]
    assert alarms(tmp_path, *callbacks, name=name)[0] == []


def test_a_diverged_run_is_not_a_collapsed_one(tmp_path):
    query = Query({1: {4: float("nan")}})
    found, _ = alarms(tmp_path, query, RoutingCollapse(every_n_steps=1, patience=1, warmup_steps=0))
    assert found == []


@pytest.mark.parametrize(("option", "value"), [("margin", -0.1), ("margin", 1.5), ("patience", 0)])
def test_options_that_cannot_work(option, value):
    with pytest.raises(UsageError, match=f"RoutingCollapse: {option}={value}; give"):
        RoutingCollapse(**{option: value})
