"""The report's numbers on every strategy, against plain forwards."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from inspected import PLUGIN, PLUGIN_WITH_ROUTING, checkpoint_of
from tiny import tiny_model, tokens, variant
from torch.nn import functional as F

from lightning_dar.charts.chart import HeatMap, LineChart
from lightning_dar.checkpoint.tensors import InMemory
from lightning_dar.diagnostics.held_out import hold_out, load_subject, names_of
from lightning_dar.diagnostics.interventions import ChangedReads, knock_out, scaled, uniform
from lightning_dar.diagnostics.routing import _SourceNames, measure_reads
from lightning_dar.errors import DataError
from lightning_dar.inspect.charts import lead_of, sections_of
from lightning_dar.inspect.report import make_report
from lightning_dar.residual.base import DepthRouting
from lightning_dar.text.tokenizer import BYTES_JSON, Tokenizer

ROUTED = [
    variant("delta-sublayer"),
    variant("delta-sublayer", gate="alpha", null_source=True),
    variant("delta-block", num_blocks=2),
    variant("attnres", num_blocks=2),
    variant("attnres", granularity="sublayer"),
    variant("cumulative-additive"),
    variant("cumulative-replacement"),
]
CPU = torch.device("cpu")


def held_out(document_mask=False, batch_size=2, count=5):
    """`count` windows of 12 predictions, in batches of two; three documents."""
    windows = tokens(count, 13, vocab=256)
    windows[1, 4] = windows[3, 2] = 256
    ends = (windows == 256).sum(1)
    before = ends.cumsum(0) - ends
    about = {"source": "test", "split": "text", "bytes_per_token": 1.0}
    return hold_out(windows, before, Tokenizer(BYTES_JSON), batch_size, document_mask, **about)


def inspected(*checkpoints, text=None):
    names = [f"{number}-{found.residual.name}" for number, found in enumerate(checkpoints)]
    return make_report(checkpoints, names, text or held_out(), CPU, {})


def report_of(*checkpoints, text=None):
    """As it is written."""
    return asdict(inspected(*checkpoints, text=text))


def plain_loss(checkpoint, text, changes=None, site=None):
    """Mean over all predictions, in float64, one change in one forward."""
    model = load_subject(checkpoint, "x", CPU).model
    ids = text.windows
    residual = changes and ChangedReads(model.residual, 8, changes, site)
    with torch.no_grad():
        logits = model(ids[:, :-1], residual=residual).double()
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()


@pytest.mark.parametrize(("name", "options"), ROUTED)
def test_every_strategy(name, options):
    checkpoint, text = checkpoint_of(name, **options), held_out()
    before = {key: checkpoint.tensors.read(key).clone() for key in checkpoint.tensors.infos}
    made = inspected(checkpoint, text=text)
    report = asdict(made)
    assert all(torch.equal(value, checkpoint.tensors.read(key)) for key, value in before.items()), "weights untouched"
    assert report == json.loads(json.dumps(report, allow_nan=False))

    (found,) = report["checkpoints"]
    own, causal = plain_loss(checkpoint, text), found["causal"]
    assert found["loss"]["loss"] == pytest.approx(own, rel=1e-5)
    assert causal["selection"]["learned"]["loss"] == pytest.approx(found["loss"]["loss"], rel=1e-5)
    cost = plain_loss(checkpoint, text, [uniform]) - own
    assert causal["selection"]["uniform"]["difference"] == pytest.approx(cost, abs=2e-4)
    assert causal["selection"]["uniform"]["loss"] == pytest.approx(own + cost, abs=2e-4)

    cells = causal["knock_out"]["sites"]
    assert len(cells) == sum(site["num_sources"] for site in found["routing"]["sites"])
    for row in (cells[0], cells[len(cells) // 2], cells[-1]):
        for kind in ("renormalised", "removed"):
            if row[kind] is not None:
                change = knock_out(row["source"], renormalised=kind == "renormalised")
                expected = plain_loss(checkpoint, text, [change], row["site"]) - own
                assert row[kind] == pytest.approx(expected, abs=2e-4)
    everywhere = causal["knock_out"]["everywhere"]
    assert [row["label"] for row in everywhere] == found["routing"]["sources"]
    expected = plain_loss(checkpoint, text, [knock_out(1, renormalised=True)]) - own
    assert everywhere[1]["renormalised"]["difference"] == pytest.approx(expected, abs=2e-4)

    replaces = name in ("attnres", "cumulative-replacement")
    assert (causal["strength"] is None) == replaces
    assert (causal["strength_note"] is not None) == replaces
    if not replaces:
        by_strength = {row["strength"]: row for row in causal["strength"]}
        assert list(by_strength) == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2]
        assert by_strength[0.5]["loss"] == pytest.approx(plain_loss(checkpoint, text, [scaled(0.5)]), abs=2e-4)
    assert name in lead_of(made)
    assert {type(chart) for section in sections_of(made) for chart in section.charts} >= {HeatMap, LineChart}


def test_sources_have_names():
    def labels(name, **options):
        subject = load_subject(checkpoint_of(name, **options), "x", CPU)
        return measure_reads(subject, held_out(), lambda windows: None).labels

    assert labels("delta-sublayer", null_source=True) == ["null", "e", *map(str, range(2, 9))]
    assert labels("attnres", num_blocks=2) == ["e", "1", "2"]


@pytest.mark.parametrize(
    ("embedding", "expected"),
    [(0, ["e", "1", "2"]), (1, ["null", "e", "2"]), (2, ["null 0", "null 1", "e"]), (None, ["0", "1", "2"])],
)
def test_every_source_has_a_name_of_its_own(embedding, expected):
    names = _SourceNames(tiny_model("standard").residual, 8)
    for count in (1, 3, 2):
        names.seen(0, DepthRouting(torch.ones(1, 1, count), [torch.ones(1, 1, 4)] * count, embedding=embedding))
    assert names.labels() == expected


@pytest.mark.parametrize("name", ["standard", "recent"])
def test_a_strategy_without_routing_has_its_loss_alone(name, own_registry):
    exec(PLUGIN, {})
    checkpoint, text = checkpoint_of(name), held_out()
    made = inspected(checkpoint, text=text)
    report = asdict(made)
    (found,) = report["checkpoints"]
    assert found["routing"] is None
    assert found["causal"] is None
    assert found["loss"]["loss"] == pytest.approx(plain_loss(checkpoint, text), rel=1e-5)
    assert "shows no routing" in lead_of(made)
    assert sections_of(made) == []


def test_a_plugin_with_routing(own_registry):
    exec(PLUGIN_WITH_ROUTING, {})
    text = held_out()
    checkpoint = checkpoint_of("recent")
    (found,) = report_of(checkpoint, text=text)["checkpoints"]
    assert [site["site"] for site in found["routing"]["sites"]] == list(range(8))
    assert found["routing"]["sites"][1]["sharpness"] == pytest.approx(torch.tensor([1.0, 2.0]).softmax(0)[1].item())
    expected = plain_loss(checkpoint, text, [uniform]) - plain_loss(checkpoint, text)
    assert found["causal"]["selection"]["uniform"]["difference"] == pytest.approx(expected, abs=2e-4)


def test_mean_weights_and_the_masses_of_the_map():
    (found,) = report_of(checkpoint_of("delta-sublayer"))["checkpoints"]
    masses = {(row["site"], row["source"]): row["mass"] for row in found["causal"]["knock_out"]["sites"]}
    for site in found["routing"]["sites"]:
        assert site["mean_weights"] == [masses[site["site"], source] for source in range(site["num_sources"])]
        assert sum(site["mean_weights"]) == pytest.approx(1)
    row = found["causal"]["knock_out"]["everywhere"][3]
    assert row["mass"] == pytest.approx(sum(masses[site, 3] for site in range(3, 8)) / 5), "of the sites that have it"


def test_a_document_mask_is_the_checkpoints():
    """Masked attention changes the loss, and changed reads are compared under the same mask."""
    checkpoint, text = checkpoint_of("attnres", num_blocks=2), held_out(document_mask=True, batch_size=5)
    (found,) = report_of(checkpoint, text=text)["checkpoints"]
    (unmasked,) = report_of(checkpoint)["checkpoints"]
    assert found["loss"]["loss"] != pytest.approx(unmasked["loss"]["loss"], rel=1e-3)
    assert found["causal"]["selection"]["learned"]["loss"] == pytest.approx(found["loss"]["loss"], rel=1e-5)


def test_checkpoints_are_compared_on_the_same_documents():
    first, second, text = checkpoint_of("delta-sublayer"), checkpoint_of("standard"), held_out(count=8)
    made = inspected(first, second, text=text)
    report = asdict(made)
    one, other = report["checkpoints"]
    assert one["loss"]["against_first"] is None
    against = other["loss"]["against_first"]
    assert against["difference"] == pytest.approx(other["loss"]["loss"] - one["loss"]["loss"], abs=1e-5)
    assert against["low"] <= against["difference"] <= against["high"]
    assert report["data"]["documents"] == 3
    bars = sections_of(made)[0].charts[0]
    assert bars.groups[0].y == [None, against["difference"]]
    assert "95% interval over 8 windows" in bars.caption


def test_five_windows_give_no_interval():
    made = inspected(checkpoint_of("delta-block", num_blocks=2), checkpoint_of("standard"))
    report = asdict(made)
    causal = report["checkpoints"][0]["causal"]
    changed = [causal["selection"]["uniform"], *causal["strength"], report["checkpoints"][1]["loss"]["against_first"]]
    changed += [row["removed"] for row in causal["knock_out"]["everywhere"]]
    changed += causal["rank_correlation"]["within_sites"].values()
    assert {(row["low"], row["high"]) for row in changed} == {(None, None)}
    assert "3 documents in 5 windows: too few for intervals" in lead_of(made)
    assert "95%" not in lead_of(made)
    captions = [chart.caption for section in sections_of(made) for chart in section.charts]
    assert sum("no interval over 5 windows" in caption for caption in captions) == 4


def test_rank_correlations_are_those_of_the_maps():
    (found,) = report_of(checkpoint_of("delta-block", num_blocks=4), text=held_out(count=9))["checkpoints"]
    rows, correlation = found["causal"]["knock_out"]["sites"], found["causal"]["rank_correlation"]

    def of(cells):
        ranks = [np.argsort(np.argsort([row[key] for row in cells])) for key in ("mass", "renormalised")]
        return np.corrcoef(*ranks)[0, 1]

    by_site = [[row for row in rows if row["site"] == site] for site in sorted({row["site"] for row in rows})]
    ordered = [of(cells) for cells in by_site if len(cells) > 2]
    within = correlation["within_sites"]["renormalised"]
    assert within["sites"] == len(ordered) == 4
    assert within["value"] == pytest.approx(np.mean(ordered))
    assert -1 <= within["low"] < within["high"] <= 1
    assert correlation["pooled"]["renormalised"] == pytest.approx(of([row for row in rows if row["renormalised"]]))


def test_a_model_that_diverged_is_named():
    checkpoint = checkpoint_of("standard")
    checkpoint.tensors.read("norm.weight").fill_(torch.nan)
    with pytest.raises(DataError, match="standard.ckpt': its loss on the text is not finite; it may have"):
        report_of(checkpoint)


def test_the_precision_is_that_of_the_training():
    checkpoint = checkpoint_of("standard")
    saved = {"lightning_dar_trainer": {"trainer": {"precision": "bf16-mixed"}}}
    mixed = replace(checkpoint, content=saved)
    subject = load_subject(mixed, "x", CPU)
    with subject.autocast():
        assert torch.is_autocast_enabled("cpu")
    (found,), (full,) = (report_of(c)["checkpoints"] for c in (mixed, checkpoint))
    assert found["precision"] == "bf16-mixed"
    assert found["loss"]["loss"] != full["loss"]["loss"]
    assert found["loss"]["loss"] == pytest.approx(full["loss"]["loss"], rel=0.05)


@pytest.mark.parametrize(
    ("precision", "dtype"), [(None, torch.float32), ("bf16-mixed", torch.float32), ("bf16-true", torch.bfloat16)]
)
def test_weights_saved_in_bf16(precision, dtype):
    checkpoint = checkpoint_of("standard")
    weights = {key: checkpoint.tensors.read(key).bfloat16() for key in checkpoint.tensors.infos}
    content = {"lightning_dar_trainer": {"trainer": {"precision": precision}}}
    subject = load_subject(replace(checkpoint, tensors=InMemory(weights), content=content), "x", CPU)
    assert {parameter.dtype for parameter in subject.model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/q/version_0/checkpoints/last.ckpt"], ["version_0"]),
        (["models/delta-block"], ["delta-block"]),
        (["a/version_0/checkpoints/last.ckpt", "a/version_1/checkpoints/last.ckpt"], ["version_0", "version_1"]),
        (["x/step=1.ckpt", "x/step=2.ckpt"], ["step=1", "step=2"]),
        (["x/a/one.ckpt", "x/b/two.ckpt"], ["a/one", "b/two"]),
        (["models/a", "models/a/b"], ["models/a", "models/a/b"]),
    ],
)
def test_names_tell_checkpoints_apart(paths, names):
    assert names_of(paths) == names
