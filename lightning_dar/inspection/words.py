"""What was found, in words made of the report's numbers."""

from typing import Any

from lightning_dar.inspection.causal import KNOCK_OUTS

NEAR_UNIFORM = 0.02  # sharpness above 1/n, in the deepest third, up to which routing counts as collapsed
TELLING, WEAK = 0.7, 0.3  # rank correlations: from here on mass tells importance; below, it does not

Inspected = dict[str, Any]


def lead_of(report: dict[str, Any]) -> str:
    """The opening, a paragraph a checkpoint."""
    data = report["data"]
    text = "the validation text" if data["split"] == "validation" else "the given text"
    start = f"On {data['tokens']:,} tokens of {text} ({data['documents']:,} documents): "
    if data["bootstrap_unit"] == "window":
        start = f"On {data['tokens']:,} tokens of {text} (one document; intervals are over its windows): "
    return start + "\n\n".join(_about(found) for found in report["checkpoints"])


def _about(found: Inspected) -> str:
    strategy, loss = found["strategy"]["name"], found["loss"]
    sentences = [f"{found['name']} ({strategy}) has loss {loss['loss']:.4f}{_against(loss['against_first'])}."]
    if found["routing"] is None:
        return " ".join([*sentences, "It shows no routing, so that there is nothing more to measure."])
    if found["routing"]["means"]["sharpness"] is not None:
        sentences.append(_sharp(found["routing"]))
    if found["causal"] is None:
        return " ".join([*sentences, "Its reads cannot be changed: query, key and value are read separately."])
    sentences += [_selectivity(found["causal"]["selection"]["uniform"]), _mass(found), _most(found)]
    return " ".join(sentences)


def _against(difference: dict[str, float] | None) -> str:
    return "" if difference is None else f", {_signed(difference)} against the first"


def _signed(value: dict[str, float]) -> str:
    return f"{value['difference']:+.4f} (95% {value['low']:+.4f} to {value['high']:+.4f})"


def _sharp(routing: dict[str, Any]) -> str:
    means, deep = routing["means"], routing["means_deep"]
    words = f"Its largest routing weight is {means['sharpness']:.2f} on average"
    if deep["sharpness"] is None:
        return f"{words}; its deepest third routes nothing."
    collapsed = is_collapsed(deep)
    verdict = "routing there has collapsed to the mean of its sources" if collapsed else "it has not collapsed"
    return (
        f"{words} and {deep['sharpness']:.2f} in the deepest third, where uniform weights would give "
        f"{deep['uniform_sharpness']:.2f}: {verdict}."
    )


def is_collapsed(deep: dict[str, float]) -> bool:
    """Whether the deepest third reads nearly uniformly, by the means over its sites."""
    return deep["sharpness"] - deep["uniform_sharpness"] <= NEAR_UNIFORM


def _selectivity(uniform: dict[str, float]) -> str:
    """What uniform weights in place of the learned ones cost."""
    if uniform["low"] > 0:
        return f"Choosing is worth something: with uniform weights the loss changes by {_signed(uniform)}."
    if uniform["high"] < 0:
        return f"Choosing does harm on this text: with uniform weights the loss changes by {_signed(uniform)}."
    return f"Choosing is not shown to be worth anything: with uniform weights the loss changes by {_signed(uniform)}."


def _mass(found: Inspected) -> str:
    value = found["causal"]["rank_correlation"]["sites_renormalised"]
    if value is None:
        return "Whether mass tells importance cannot be said: nothing differs."
    verdict = "tells" if value >= TELLING else "does not tell" if value < WEAK else "tells only in part"
    return f"Mass {verdict} importance (rank correlation {value:.2f} over sites and sources)."


def _most(found: Inspected) -> str:
    kind = KNOCK_OUTS[0]
    rows = [row for row in found["causal"]["knock_out"]["everywhere"] if row[kind] is not None]
    if not rows:
        return "It has but one source."
    top = max(rows, key=lambda row: row[kind]["difference"])
    heaviest = max(rows, key=lambda row: row["mass"])
    same = "which also has the most mass" if heaviest is top else f"while the most mass is on {_source(heaviest)}"
    return f"The source that matters most is {_source(top)}: without it anywhere, {_signed(top[kind])}, {same}."


def _source(row: dict[str, Any]) -> str:
    names = {"e": "the embedding", "null": "the null source"}
    return names.get(row["label"], f"source {row['label']}")
