"""What the measuring callbacks log, against a computation of its own; and that training does not notice them."""

import copy
import gc

import lightning as L
import pytest
import torch
from by_hand import by_hand

from benchmarks.held import held_bytes
from lightning_dar.callbacks import RoutingSharpness, RunSummary, SampleText, Throughput
from lightning_dar.callbacks.measuring import new_probe, watch
from lightning_dar.diagnostics.interventions import Watched
from lightning_dar.diagnostics.probe import RoutingProbe, StreamProbe
from lightning_dar.errors import UsageError
from lightning_dar.residual import register_residual
from lightning_dar.residual.base import Residual
from lightning_dar.residual.delta_sublayer import DeltaSublayer
from lightning_dar.text.loading import collate
from runs import MEASURING, SEQ_LEN, VOCAB, RandomTokens, Scramble, events, fit, language_model

THIRDS = {"shallow": (1,), "middle": (2, 3), "deep": (4, 5)}  # of six sites; site 0 reads nothing


class Record(L.Callback):
    """Keeps each step's network as it was before the step, and the step's micro-batches."""

    def __init__(self):
        self.models, self.batches = {}, {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        step = trainer.global_step + 1
        self.models.setdefault(step, copy.deepcopy(pl_module.model))
        self.batches.setdefault(step, []).append(batch)


@pytest.mark.parametrize(
    ("settings", "micro_batches"),
    [
        pytest.param({}, 4, id="float32"),
        pytest.param({"precision": "bf16-mixed"}, 4, id="bf16-mixed"),
        pytest.param({"accumulate_grad_batches": 2}, 4, id="accumulated"),
        pytest.param({"accumulate_grad_batches": 3}, 2, id="first-of-accumulated"),
    ],
)
def test_every_number_agrees_with_saved_activations(settings, micro_batches, tmp_path):
    record = Record()
    callbacks = [kind(every_n_steps=2, micro_batches=micro_batches) for kind in MEASURING]
    trainer = fit(tmp_path, Scramble(), record, *callbacks, max_steps=3, limit_val_batches=0, **settings)
    logged = events(trainer)
    precision = torch.bfloat16 if "precision" in settings else torch.float32
    expected = by_hand(record.models[2], record.batches[2][:micro_batches], precision)
    assert len(expected) == 10
    for name, by_site in expected.items():
        group, statistic = name.split("/")
        wanted = {f"{group}_sites/{statistic}_{site:02d}": value for site, value in by_site.items()}
        wanted[name] = sum(by_site.values()) / len(by_site)
        for third, sites in THIRDS.items():
            wanted[f"{name}_{third}"] = sum(by_site[site] for site in sites) / len(sites)
        for tag, value in wanted.items():
            (event,) = logged.Scalars(tag)
            assert event.step == 1
            assert event.value == pytest.approx(value, rel=1e-4, abs=1e-6), tag


@pytest.mark.parametrize("kind", [RoutingProbe, StreamProbe])
def test_windows_that_pad_a_ranks_share_are_not_counted(kind, tmp_path):
    module = language_model()
    trainer = fit(tmp_path, Scramble(), model=module, max_steps=1, limit_val_batches=0)
    real = [*torch.randint(VOCAB, (3, SEQ_LEN + 1))]
    padding = [torch.full((SEQ_LEN + 1,), -1)] * 2

    def measured(*batches):
        probe = new_probe(kind, module)
        for batch in batches:
            watch(trainer, module, [probe], collate(batch))
        return probe.sites

    expected, found = measured(real), measured([real[0], *padding, *real[1:]], padding)
    assert found.keys() == expected.keys() == set(range(1, 6))
    for site, values in expected.items():
        assert found[site].tokens == 3 * SEQ_LEN
        numbers = {name: value for name, value in vars(values).items() if value is not None}
        for name, value in numbers.items():
            torch.testing.assert_close(getattr(found[site], name), value, rtol=1e-4, atol=1e-4)
    assert measured(padding) == {}


def test_scalars_are_grouped(tmp_path):
    trainer = fit(tmp_path, *(kind(every_n_steps=2) for kind in MEASURING), max_steps=2, limit_val_batches=0)
    tags = set(events(trainer).Tags()["scalars"])
    groups = {"routing", "routing_sites", "branch", "branch_sites", "redundancy", "redundancy_sites"}
    assert {tag.split("/")[0] for tag in tags} == groups | {"train", "epoch", "hp_metric"}
    assert all(tag.split("_")[-1].isdigit() for tag in tags if tag.split("/")[0].endswith("_sites"))
    assert len([tag for tag in tags if tag.startswith("routing/")]) == 6 * 4, "six statistics: mean and three thirds"


class Noisy(DeltaSublayer):
    """Draws random numbers and counts in a buffer: what a probe's forward must not leave behind."""

    def __init__(self, shape):
        super().__init__(shape)
        self.register_buffer("reads", torch.zeros(shape.num_sites))

    def read(self, state, site):
        self.reads[site] += 1
        x = super().read(state, site)
        return x + 0.1 * torch.randn_like(x) * self.reads[site].sqrt()


@pytest.mark.parametrize("name", ["delta-sublayer", "noisy"])
def test_measuring_changes_nothing_that_is_trained(name, tmp_path, own_registry):
    register_residual("noisy")(Noisy)
    finals = []
    for callbacks in ([], [*(kind(every_n_steps=1) for kind in MEASURING), SampleText(), Throughput()]):
        L.seed_everything(1)
        module = language_model(name)
        fit(tmp_path, *callbacks, model=module, max_steps=3, limit_val_batches=1)
        finals.append((module.model.state_dict(), torch.get_rng_state()))
    (weights, state), (measured, state_measured) = finals
    assert all(torch.equal(tensor, measured[key]) for key, tensor in weights.items())
    assert torch.equal(state, state_measured)


class Between(L.Callback):
    """After the last step: probes that are alive, and bytes that a training forward holds."""

    def on_train_end(self, trainer, pl_module):
        gc.collect()
        self.alive = sum(issubclass(type(item), Watched) for item in gc.get_objects())
        batch = trainer.datamodule.batches[0]
        owned = [*pl_module.parameters(), *batch.values()]
        self.held = held_bytes(lambda: pl_module._loss(batch)[0], owned)


def test_between_measurements_nothing_is_held(tmp_path):
    measured, plain = Between(), Between()
    measuring = [kind(every_n_steps=1) for kind in MEASURING]
    fit(tmp_path, *measuring, measured, max_steps=1, limit_val_batches=1, val_check_interval=1)
    fit(tmp_path, plain, max_steps=1, limit_val_batches=0)
    assert measured.alive == 0
    assert measured.held == plain.held > 0


def test_one_forward_serves_all_and_no_training_step_passes_a_probe(tmp_path, monkeypatch):
    reads, measurements, probed = [], [], Watched.read
    monkeypatch.setattr(Watched, "read", lambda self, state, site: reads.append(site) or probed(self, state, site))
    opened = DeltaSublayer.routing
    monkeypatch.setattr(
        DeltaSublayer, "routing", lambda self, state, site: measurements.append(site) or opened(self, state, site)
    )
    fit(tmp_path, *(kind(every_n_steps=3) for kind in MEASURING), max_steps=7, limit_val_batches=0)
    assert reads == [0, 1, 2, 3, 4, 5] * 2, "steps 3 and 6"
    assert measurements == [0, 1, 2, 3, 4, 5, 6] * 2, "each read, and the finish, laid open once"


class Plain(Residual):
    """A plugin without `routing`: the standard stream."""

    def start(self, embeddings):
        return embeddings

    def read(self, state, site):
        return state

    def write(self, state, y, site):
        return state + y

    def finish(self, state):
        return state


@pytest.mark.parametrize("name", ["standard", "plain"])
def test_a_strategy_without_routing_is_not_measured_and_reported_as_such(name, tmp_path, own_registry, capsys):
    register_residual("plain")(Plain)
    callbacks = [*(kind(every_n_steps=1) for kind in MEASURING), RunSummary()]
    trainer = fit(tmp_path, *callbacks, model=language_model(name), max_steps=2, val_check_interval=2)
    tags = events(trainer).Tags()
    assert "none: nothing is routed" in capsys.readouterr().out
    assert {tag.split("/")[0] for tag in tags["scalars"]} == {"train", "val", "epoch", "hp_metric"}
    assert not tags["images"]


@pytest.mark.parametrize("kind", MEASURING)
@pytest.mark.parametrize("name", ["every_n_steps", "micro_batches"])
def test_a_cadence_of_nothing_is_refused(kind, name):
    with pytest.raises(UsageError, match=f"{kind.__name__}: {name}=0; give 1 or more"):
        kind(**{name: 0})


def test_measuring_goes_on_when_a_run_is_continued(tmp_path):
    sharpness = RoutingSharpness(every_n_steps=4)
    module = language_model()
    trainer = fit(tmp_path, sharpness, model=module, max_steps=3, limit_val_batches=0)
    trainer.fit_loop.max_epochs, trainer.fit_loop.epoch_loop.max_steps = 2, 9
    trainer.fit(module, RandomTokens())
    assert [event.step for event in events(trainer).Scalars("routing/sharpness")] == [3, 7]
