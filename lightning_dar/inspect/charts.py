"""The charts of a report, and the sentences beside them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_dar.charts.chart import Axis, BarChart, Chart, HeatMap, LineChart, Section, Series
from lightning_dar.diagnostics.losses import KNOCK_OUTS, SELECTIONS
from lightning_dar.diagnostics.probe import NEAR_UNIFORM
from lightning_dar.diagnostics.results import (
    Causal,
    Difference,
    Inspected,
    Means,
    Report,
    Routing,
    SiteReads,
    Source,
    WithinSites,
)
from lightning_dar.diagnostics.routing_charts import SITE, by_site, shares, uniform, weights
from lightning_dar.diagnostics.statistics import LEVEL, MIN_UNITS


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
    """The claim for the side of zero on which the whole interval lies; None where there is no interval to claim by."""
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


SOURCE = Axis(label="source (e: embedding, then oldest first)")
LOSS_CHANGE = Axis(label="change in loss", unit="nats per token")
SELECTION_LABELS = {"uniform": "uniform, 1/n", "mean": "the site's mean weights", "hardest": "the largest weight only"}
MISSING = {"renormalised": "the others scaled to add up to 1", "removed": "nothing in its place"}


def sections_of(report: Report) -> list[Section]:
    """Sections in the order in which a reader asks; those with nothing to show are left out."""
    routed = [found for found in report.checkpoints if found.routing is not None]
    over, sections = _over(report.data), []
    if len(report.checkpoints) > 1:
        text = "On the same text, each prediction counted once."
        sections.append(Section(heading="Loss", text=text, charts=[_losses(report.checkpoints, over)]))
    if routed:
        sections.append(_sharpness(routed))
    changed = [found for found in routed if found.causal is not None]
    if changed:
        sections += [_maps(changed, over), _worth(changed, over)]
    if routed:
        sections.append(_stream(routed))
    return sections


def _over(data: Mapping[str, Any]) -> str:
    """What the whiskers and bands of the charts are."""
    units = counted(data["bootstrap_units"], data["bootstrap_unit"])
    return f"no interval over {units}" if data["bootstrap_units"] < MIN_UNITS else f"{LEVEL:.0%} interval over {units}"


def _losses(checkpoints: list[Inspected], over: str) -> BarChart:
    return BarChart(
        name="loss",
        title=f"Loss against {checkpoints[0].name}",
        caption=f"Negative is better. Whiskers: {over}, the same for both.",
        categories=[found.name for found in checkpoints],
        y=Axis(label="difference in loss", unit="nats per token"),
        groups=[_bars("difference", [found.loss.against_first for found in checkpoints])],
    )


def _bars(name: str, losses: Sequence[Difference | None]) -> Series:
    return Series(
        name=name,
        x=[float(number) for number in range(len(losses))],
        y=[loss and loss.difference for loss in losses],
        low=[loss and loss.low for loss in losses],
        high=[loss and loss.high for loss in losses],
    )


def _sites(found: Inspected) -> dict[int, SiteReads]:
    return {site.site: site for site in found.routing.sites}


def _sharpness(routed: list[Inspected]) -> Section:
    runs = {found.name: _sites(found) for found in routed}
    sharpness = by_site(runs, "sharpness", "Sharpness by depth", "largest routing weight")
    references = [uniform(f"{name}, uniform 1/n", sites) for name, sites in runs.items()]
    charts: list[Chart] = [
        replace(sharpness, series=[*sharpness.series, *references]),
        by_site(runs, "entropy", "Entropy of the weights", "H / log n"),
        by_site(runs, "effective_sources", "Effective number of sources", "exp(H)", "sources"),
    ]
    for found in routed:
        title = f"Where the largest weight lies: {found.name}"
        charts.append(shares(title, _sites(found), f"shares-{_slug(found)}"))
    text = (
        "Sharpness is the mean over tokens of the largest weight: 1/n where a site averages its n sources, 1 where "
        "each token picks one."
    )
    return Section(heading="How sharply each site reads", text=text, charts=charts)


def _maps(routed: list[Inspected], over: str) -> Section:
    charts: list[Chart] = []
    for found in routed:
        by_source = {site.site: site.mean_weights for site in found.routing.sites}
        title = f"Routing mass: {found.name}"
        charts.append(weights(title, by_source, found.routing.sources, f"mass-{_slug(found)}", SOURCE))
        for kind, place in MISSING.items():
            caption = f"Change in loss when one site cannot read one source; {place}."
            charts.append(_importance(found, kind, caption))
        charts.append(_everywhere(found, over))
    text = (
        "Mass is what a site gives to a source, importance by how much the loss rises when the site reads without it. "
        "They need not agree. " + " ".join(map(_correlation_words, routed))
    )
    return Section(heading="Mass against importance", text=text, charts=charts)


def _correlation_words(found: Inspected) -> str:
    within = found.causal.rank_correlation.within_sites["renormalised"]
    if within.value is None:
        return f"Rank correlation for {found.name}: undefined."
    ends = "" if within.low is None else f" ({LEVEL:.0%} {within.low:.2f} to {within.high:.2f})"
    return f"Rank correlation within sites for {found.name}: {within.value:.2f}{ends}."


def _importance(found: Inspected, kind: str, caption: str) -> HeatMap:
    cells = {(cell.site, cell.source): getattr(cell, kind) for cell in found.causal.knock_out.sites}
    sites, sources = [site.site for site in found.routing.sites], found.routing.sources
    return HeatMap(
        name=f"importance-{kind}-{_slug(found)}",
        title=f"Importance, {kind}: {found.name}",
        caption=caption,
        x=SOURCE,
        y=SITE,
        columns=sources,
        rows=[str(site) for site in sites],
        value=LOSS_CHANGE,
        values=[[cells.get((site, source)) for source in range(len(sources))] for site in sites],
        diverging=True,
    )


def _everywhere(found: Inspected, over: str) -> BarChart:
    sources = found.causal.knock_out.everywhere
    return BarChart(
        name=f"importance-everywhere-{_slug(found)}",
        title=f"A source knocked out everywhere: {found.name}",
        caption=f"Change in loss when no site can read the source. Whiskers: {over}.",
        categories=[source.label for source in sources],
        y=LOSS_CHANGE,
        groups=[_bars(kind, [getattr(source, kind) for source in sources]) for kind in MISSING],
    )


def _worth(routed: list[Inspected], over: str) -> Section:
    swept = [found for found in routed if found.causal.strength is not None]
    charts: list[Chart] = [_selection(routed, over)] + ([_strength(swept, over)] if swept else [])
    unswept = [f"{found.name}: {found.causal.strength_note}." for found in routed if found not in swept]
    text = "What choosing is worth, and how much of the routed branch the network wants. " + " ".join(unswept)
    return Section(heading="What selectivity is worth", text=text.strip(), charts=charts)


def _selection(routed: list[Inspected], over: str) -> BarChart:
    return BarChart(
        name="selection",
        title="Other weights in place of the learned ones",
        caption=f"Change in loss, all sites at once. Whiskers: {over}.",
        categories=[SELECTION_LABELS[name] for name in SELECTIONS],
        y=LOSS_CHANGE,
        groups=[_bars(found.name, [getattr(found.causal.selection, name) for name in SELECTIONS]) for found in routed],
    )


def _strength(swept: list[Inspected], over: str) -> LineChart:
    rows_by_name = [(found.name, found.causal.strength) for found in swept]
    return LineChart(
        name="strength",
        title="Strength of the routed branch",
        caption=f"Change in loss when every read is scaled; 1 is the network as it is. Band: {over}.",
        x=Axis(label="strength", unit="times"),
        y=LOSS_CHANGE,
        series=[replace(_bars(name, rows), x=[row.strength for row in rows]) for name, rows in rows_by_name],
    )


def _stream(routed: list[Inspected]) -> Section:
    wanted = {
        "strength": ("branch_strength", "Strength of the branch", "|c r| / |h|"),
        "branch_norm": ("branch_norm", "Norm of what is read", "|c r|"),
        "stream_norm": ("stream_norm", "Norm of the stream", "|h|"),
        "gate": ("gate", "Gate", "c"),
        "redundancy": ("redundancy", "Redundancy of the sources", "mean pairwise cosine"),
    }
    charts: list[Chart] = []
    for field, (name, title, label) in wanted.items():
        runs = {found.name: _sites(found) for found in routed}
        having = {run: s for run, s in runs.items() if any(getattr(site, field) is not None for site in s.values())}
        if having:
            charts.append(by_site(having, field, title, label, name=name))
    text = (
        "How much the reads add, and how much their sources say the same: at a cosine of 1 there is nothing to choose."
    )
    return Section(heading="Stream and sources", text=text, charts=charts)


def _slug(found: Inspected) -> str:
    """For the names of files; they stay apart where names differ in other characters only."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", found.name).strip("-.") or "checkpoint"
    return plain if plain == found.name else f"{plain}-{found.number}"
