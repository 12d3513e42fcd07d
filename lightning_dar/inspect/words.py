"""What was found, in words made of its numbers. Nothing is claimed that an interval does not show."""

from collections.abc import Mapping
from typing import Any

from lightning_dar.diagnostics.bootstrap import LEVEL, MIN_UNITS
from lightning_dar.diagnostics.probe import NEAR_UNIFORM
from lightning_dar.inspect.causal import KNOCK_OUTS
from lightning_dar.inspect.result import Causal, Difference, Inspected, Means, Report, Routing, Source, WithinSites


def lead_of(report: Report) -> str:
    """The opening, a paragraph a checkpoint."""
    data = report.data
    text = "the validation text" if data["split"] == "validation" else "the given text"
    start = f"On {data['tokens']:,} tokens of {text} ({_units(data)}): "
    return start + "\n\n".join(_about(found) for found in report.checkpoints)


def _units(data: Mapping[str, Any]) -> str:
    """How much text, and what intervals are over."""
    documents, windows = counted(data["documents"], "document"), counted(data["windows"], "window")
    if data["bootstrap_units"] < MIN_UNITS:
        return f"{documents} in {windows}: too few for intervals"
    if data["bootstrap_unit"] == "window":
        return f"{documents}, too few for intervals, which are over its {windows}"
    return documents


def counted(number: int, name: str) -> str:
    """`1 window`, `2 windows`."""
    return f"{number:,} {name}" + "s" * (number != 1)


def _about(found: Inspected) -> str:
    loss = found.loss
    sentences = [f"{found.name} ({found.strategy.name}) has loss {loss.loss:.4f}{_against(loss.against_first)}."]
    if found.routing is None:
        return " ".join([*sentences, "It shows no routing, so that there is nothing more to measure."])
    if found.routing.means.sharpness is not None:
        sentences.append(_sharp(found.routing))
    if found.causal is None:
        return " ".join([*sentences, "Its reads cannot be changed: query, key and value are read separately."])
    causal = found.causal
    sentences += [_selectivity(causal.selection.uniform), _mass(causal), _most(causal)]
    return " ".join(sentences)


def _against(difference: Difference | None) -> str:
    return "" if difference is None else f", {_signed(difference)} against the first"


def _signed(value: Difference) -> str:
    return f"{value.difference:+.4f}{_interval(value, '+.4f')}"


def _interval(value: Difference | WithinSites, form: str) -> str:
    return "" if value.low is None else f" ({LEVEL:.0%} {value.low:{form}} to {value.high:{form}})"


def _sharp(routing: Routing) -> str:
    means, deep = routing.means, routing.means_deep
    words = f"Its largest routing weight is {means.sharpness:.2f} on average"
    if deep.sharpness is None:
        return f"{words}; its deepest third routes nothing."
    collapsed = is_collapsed(deep)
    verdict = "routing there has collapsed to the mean of its sources" if collapsed else "it has not collapsed"
    return (
        f"{words} and {deep.sharpness:.2f} in the deepest third, where uniform weights would give "
        f"{deep.uniform_sharpness:.2f}: {verdict}."
    )


def is_collapsed(deep: Means) -> bool:
    """Whether the deepest third reads nearly uniformly, by the means over its sites."""
    return deep.sharpness - deep.uniform_sharpness <= NEAR_UNIFORM


def _selectivity(uniform: Difference) -> str:
    """What uniform weights in place of the learned ones cost."""
    changes = f"with uniform weights the loss changes by {_signed(uniform)}."
    claim = _claim(
        uniform,
        above="Choosing is worth something",
        below="Choosing does harm on this text",
        neither="Choosing is not shown to be worth anything",
    )
    return f"{changes[0].upper()}{changes[1:]}" if claim is None else f"{claim}: {changes}"


def _claim(found: Difference | WithinSites, *, above: str, below: str, neither: str) -> str | None:
    """By the side of zero on which the whole interval lies; None where there is no interval to claim by."""
    if found.low is None:
        return None
    return above if found.low > 0 else below if found.high < 0 else neither


def _mass(causal: Causal) -> str:
    """Whether the sources of a site that have more mass matter more."""
    found = causal.rank_correlation.within_sites[KNOCK_OUTS[0]]
    if found.value is None:
        return "Whether mass tells importance cannot be said: no site orders three sources."
    number = f"rank correlation {found.value:.2f}{_interval(found, '.2f')} within sites, on average"
    claim = _claim(
        found,
        above="Sources with more mass matter more",
        below="Sources with more mass matter less",
        neither="Mass is not shown to tell importance",
    )
    return f"Mass and importance have {number}." if claim is None else f"{claim}: {number}."


def _most(causal: Causal) -> str:
    """The source whose loss is felt most, if one is."""
    costs = [(source, cost) for source in causal.knock_out.everywhere if (cost := getattr(source, KNOCK_OUTS[0]))]
    if not costs:
        return "It has but one source."
    top, cost = max(costs, key=lambda each: each[1].difference)
    if cost.low is None or cost.low <= 0:
        return (
            f"No single source is shown to matter: the largest change in loss, without {_source(top)} anywhere, is "
            f"{_signed(cost)}."
        )
    heaviest = max((source for source, _ in costs), key=lambda source: source.mass)
    same = "which also has the most mass" if heaviest is top else f"while the most mass is on {_source(heaviest)}"
    return f"The source that matters most is {_source(top)}: without it anywhere, {_signed(cost)}, {same}."


def _source(source: Source) -> str:
    label = source.label
    if label == "e":
        return "the embedding"
    if label == "null":
        return "the null source"
    return label.replace("null", "null source") if label.startswith("null") else f"source {label}"
