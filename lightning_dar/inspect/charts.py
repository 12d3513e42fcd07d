"""The charts of a report: nothing here measures, every number is one of the report's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_dar.charts.chart import Axis, BarChart, Chart, HeatMap, LineChart, Section, Series
from lightning_dar.diagnostics.bootstrap import LEVEL, MIN_UNITS
from lightning_dar.diagnostics.routing_charts import SITE, by_site, shares, uniform, weights
from lightning_dar.inspect.causal import SELECTIONS
from lightning_dar.inspect.result import Difference, Inspected, Report, SiteReads
from lightning_dar.inspect.words import counted

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
