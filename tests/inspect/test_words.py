"""The opening paragraph, from reports made by hand: every branch, at its thresholds."""

from dataclasses import replace

import pytest

from lightning_dar.diagnostics.results import (
    Causal,
    ChangedLoss,
    Inspected,
    KnockOuts,
    LossNumbers,
    Means,
    PlainLoss,
    RankCorrelations,
    Report,
    ResidualChoice,
    Routing,
    Selection,
    Source,
    WithinSites,
)
from lightning_dar.inspect.charts import lead_of


def change(difference, low=None, high=None):
    return ChangedLoss(loss=2.0 + difference, difference=difference, low=low, high=high)


def source(label, mass, found):
    return Source(source=0, label=label, mass=mass, renormalised=found, removed=None)


def within_sites(value=None, low=None, high=None):
    return WithinSites(value=value, low=low, high=high, sites=1)


def means_of(sharpness, uniform_sharpness=None):
    others = dict.fromkeys(("entropy", "effective_sources", "share_embedding", "share_newest", "share_older"))
    return Means(sharpness=sharpness, uniform_sharpness=uniform_sharpness, **others)


def checkpoint(uniform=None, within=None, everywhere=(), against=None, means=(0.5, 0.4, 0.2), **changed):
    """Sharpness `means`: of all sites, of the deepest third, and what uniform weights would give there."""
    overall, deep, at_uniform = means
    cost = uniform or change(0.1)
    causal = Causal(
        selection=Selection(learned=PlainLoss(loss=2.0), uniform=cost, mean=cost, hardest=cost),
        knock_out=KnockOuts(sites=[], everywhere=list(everywhere)),
        rank_correlation=RankCorrelations(
            within_sites={"renormalised": within or within_sites()}, pooled={}, everywhere={}
        ),
        strength=None,
        strength_note=None,
    )
    found = Inspected(
        number=1,
        name="run",
        path="run.ckpt",
        step=None,
        strategy=ResidualChoice(name="delta-block", options={}),
        num_layers=2,
        hidden_size=4,
        parameters=8,
        precision="32-true",
        loss=LossNumbers(loss=2.0, perplexity=7.4, bits_per_byte=None, against_first=against),
        routing=Routing(sources=[], sites=[], means=means_of(overall), means_deep=means_of(deep, at_uniform)),
        causal=causal,
    )
    return replace(found, **changed)


def lead(*checkpoints, **data):
    about = {"tokens": 2048, "split": "text", "documents": 9, "windows": 8}
    about |= {"bootstrap_unit": "document", "bootstrap_units": 9}
    found = list(checkpoints or [checkpoint()])
    return lead_of(Report(format=1, data=about | data, checkpoints=found, settings={}, versions={}))


@pytest.mark.parametrize(
    ("data", "start"),
    [
        ({}, "On 2,048 tokens of the given text (9 documents): run (delta-block) has loss 2.0000."),
        ({"split": "validation"}, "On 2,048 tokens of the validation text (9 documents): "),
        ({"documents": 8, "bootstrap_units": 8}, "(8 documents): "),
        (
            {"documents": 1, "bootstrap_unit": "window", "bootstrap_units": 8},
            "(1 document, too few for intervals, which are over its 8 windows): ",
        ),
        (
            {"documents": 7, "windows": 7, "bootstrap_units": 7},
            "(7 documents in 7 windows: too few for intervals): ",
        ),
        (
            {"documents": 1, "windows": 1, "bootstrap_unit": "window", "bootstrap_units": 1},
            "(1 document in 1 window: too few for intervals): ",
        ),
    ],
)
def test_the_text(data, start):
    assert start in lead(**data)


def test_a_paragraph_a_checkpoint_against_the_first():
    words = lead(checkpoint(), checkpoint(against=change(-0.02, -0.03, -0.01)), checkpoint(against=change(0.5)))
    assert words.count("\n\n") == 2
    assert "has loss 2.0000, -0.0200 (95% -0.0300 to -0.0100) against the first." in words
    assert "has loss 2.0000, +0.5000 against the first." in words


def test_nothing_to_measure():
    assert lead(checkpoint(routing=None, causal=None)).endswith("no routing, so that there is nothing more to measure.")
    assert lead(checkpoint(causal=None)).endswith("cannot be changed: query, key and value are read separately.")


@pytest.mark.parametrize(
    ("means", "words"),
    [
        ((0.5, 0.21, 0.2), "0.21 in the deepest third, where uniform weights would give 0.20: routing there has coll"),
        ((0.5, 0.02, 0.0), "routing there has collapsed to the mean of its sources."),
        ((0.5, 0.0201, 0.0), "it has not collapsed."),
        ((0.5, None, None), "Its largest routing weight is 0.50 on average; its deepest third routes nothing."),
    ],
)
def test_sharpness(means, words):
    assert words in lead(checkpoint(means=means))


def test_one_source_has_no_sharpness():
    assert "largest routing weight" not in lead(checkpoint(means=(None, None, None)))


@pytest.mark.parametrize(
    ("uniform", "words"),
    [
        (change(0.1, 1e-9, 0.2), "Choosing is worth something: with uniform weights the loss changes by +0.1000 (95%"),
        (change(0.1, 0.0, 0.2), "Choosing is not shown to be worth anything: with uniform"),
        (change(-0.1, -0.2, 0.0), "Choosing is not shown to be worth anything: with uniform"),
        (change(-0.1, -0.2, -1e-9), "Choosing does harm on this text: with uniform weights the loss changes by -0.1"),
        (change(0.1), ". With uniform weights the loss changes by +0.1000."),
    ],
)
def test_uniform_weights(uniform, words):
    found = lead(checkpoint(uniform))
    assert words in found
    assert ("Choosing" in found) == (uniform.low is not None)


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (0.4, 0.01, 0.6, "Sources with more mass matter more: rank correlation 0.40 (95% 0.01 to 0.60) within sites"),
        (0.4, 0.0, 0.6, "Mass is not shown to tell importance: rank correlation 0.40"),
        (-0.4, -0.6, 0.0, "Mass is not shown to tell importance: rank correlation -0.40"),
        (-0.4, -0.6, -0.01, "Sources with more mass matter less: rank correlation -0.40"),
        (0.9, None, None, "Mass and importance have rank correlation 0.90 within sites, on average."),
        (None, None, None, "Whether mass tells importance cannot be said: no site orders three sources."),
    ],
)
def test_mass_and_importance(value, low, high, words):
    assert words in lead(checkpoint(within=within_sites(value, low, high)))


SURE, UNSURE, UNKNOWN = change(0.3, 1e-9, 0.6), change(0.3, 0.0, 0.6), change(0.3)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [source("e", 0.6, SURE), source("1", 0.4, change(0.1, 0.05, 0.2))],
            "The source that matters most is the embedding: without it anywhere, +0.3000 (95% +0.0000 to +0.6000), "
            "which also has the most mass.",
        ),
        (
            [source("null", 0.6, change(0.1, 0.05, 0.2)), source("2", 0.4, SURE)],
            "matters most is source 2: without it anywhere, +0.3000 (95% +0.0000 to +0.6000), while the most mass is "
            "on the null source.",
        ),
        ([source("null 1", 0.6, SURE)], "matters most is null source 1:"),
        (
            [source("e", 0.6, UNSURE), source("1", 0.4, change(0.1, 0.05, 0.2))],
            "No single source is shown to matter: the largest change in loss, without the embedding anywhere, is +0.3",
        ),
        ([source("3", 0.6, UNKNOWN)], "to matter: the largest change in loss, without source 3 anywhere, is +0.3000."),
        ([source("e", 1.0, None)], "It has but one source."),
    ],
)
def test_the_source_that_matters_most(rows, words):
    found = lead(checkpoint(everywhere=rows))
    assert words in found
    assert ("matters most" in found) == any(row.renormalised is SURE for row in rows)
