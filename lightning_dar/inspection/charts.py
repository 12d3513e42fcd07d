"""The charts of a report: nothing here measures, every number is one of the report's."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lightning_dar.diagnostics.bootstrap import LEVEL, MIN_UNITS
from lightning_dar.inspection.causal import SELECTIONS
from lightning_dar.inspection.words import counted
from lightning_dar.report.chart import Axis, BarChart, Chart, HeatMap, LineChart, Section, Series

Inspected = dict[str, Any]  # one of the report's checkpoints

SITE = Axis(label="site (even: attention, odd: MLP)")
SOURCE = Axis(label="source (e: embedding, then oldest first)")
LOSS_CHANGE = Axis(label="change in loss", unit="nats a token")
SELECTION_LABELS = {"uniform": "uniform, 1/n", "mean": "the site's mean weights", "hardest": "the largest weight only"}
MISSING = {"renormalised": "the others scaled to add up to 1", "removed": "nothing in its place"}


def sections_of(report: dict[str, Any]) -> list[Section]:
    """Sections in the order in which a reader asks; those with nothing to show are left out."""
    checkpoints: list[Inspected] = report["checkpoints"]
    routed = [found for found in checkpoints if found["routing"] is not None]
    over, sections = _over(report["data"]), []
    if len(checkpoints) > 1:
        text = "On the same text, each prediction counted once."
        sections.append(Section(heading="Loss", text=text, charts=[_losses(checkpoints, over)]))
    if routed:
        sections.append(_sharpness(routed))
    changed = [found for found in routed if found["causal"] is not None]
    if changed:
        sections += [_maps(changed, over), _worth(changed, over)]
    if routed:
        sections.append(_stream(routed))
    return sections


def _over(data: dict[str, Any]) -> str:
    """What the whiskers and bands of the charts are."""
    units = counted(data["bootstrap_units"], data["bootstrap_unit"])
    return f"no interval over {units}" if data["bootstrap_units"] < MIN_UNITS else f"{LEVEL:.0%} interval over {units}"


def _losses(checkpoints: list[Inspected], over: str) -> BarChart:
    against = [found["loss"]["against_first"] for found in checkpoints]
    bars = _bars("difference", against)
    return BarChart(
        name="loss",
        title=f"Loss against {checkpoints[0]['name']}",
        caption=f"Negative is better. Whiskers: {over}, the same for both.",
        categories=[found["name"] for found in checkpoints],
        y=Axis(label="difference in loss", unit="nats a token"),
        groups=[bars],
    )


def _bars(name: str, rows: list[dict[str, Any] | None]) -> Series:
    columns = {key: [row and row[key] for row in rows] for key in ("difference", "low", "high")}
    return Series(
        name=name,
        x=[float(number) for number in range(len(rows))],
        y=columns["difference"],
        low=columns["low"],
        high=columns["high"],
    )


def _sharpness(routed: list[Inspected]) -> Section:
    sharpness = _by_site(routed, "sharpness", "sharpness", "Sharpness by depth", "largest routing weight")
    uniform = [_line(found, f"{found['name']}, uniform 1/n", _uniform, dashed=True) for found in routed]
    sharpness = replace(sharpness, series=[*sharpness.series, *uniform])
    charts: list[Chart] = [
        sharpness,
        _by_site(routed, "entropy", "entropy", "Entropy of the weights", "H / log n"),
        _by_site(routed, "effective_sources", "effective_sources", "Effective number of sources", "exp(H)", "sources"),
        *(_shares(found) for found in routed),
    ]
    text = (
        "Sharpness is the mean over tokens of the largest weight: 1/n where a site averages its n sources, 1 where "
        "each token picks one."
    )
    return Section(heading="How sharply each site reads", text=text, charts=charts)


def _uniform(site: dict[str, Any]) -> float | None:
    return 1 / site["num_sources"] if site["num_sources"] > 1 else None


def _line(found: Inspected, name: str, value: Callable[[dict[str, Any]], float | None], dashed: bool = False) -> Series:
    sites = found["routing"]["sites"]
    return Series(name=name, x=[float(s["site"]) for s in sites], y=[value(s) for s in sites], dashed=dashed)


def _by_site(routed: list[Inspected], key: str, name: str, title: str, label: str, unit: str = "") -> LineChart:
    return LineChart(
        name=name,
        title=title,
        caption="Mean over tokens, site by site. A site behind the last sublayer is the final read.",
        x=SITE,
        y=Axis(label=label, unit=unit),
        series=[_line(found, found["name"], lambda site: site[key]) for found in routed],
    )


def _shares(found: Inspected) -> LineChart:
    shares = {"embedding": "share_embedding", "newest source": "share_newest", "an older one": "share_older"}
    return LineChart(
        name=f"shares-{_slug(found)}",
        title=f"Where the largest weight lies: {found['name']}",
        caption="Share of tokens whose largest weight lies on the embedding, the newest source or an older one.",
        x=SITE,
        y=Axis(label="share of tokens"),
        series=[_line(found, name, lambda site, key=key: site[key]) for name, key in shares.items()],
    )


def _maps(routed: list[Inspected], over: str) -> Section:
    charts: list[Chart] = []
    for found in routed:
        charts.append(_map(found, "mass", "mass", "Routing mass", "Mean routing weight, over tokens."))
        for kind, place in MISSING.items():
            caption = f"Change in loss when one site cannot read one source; {place}."
            charts.append(_map(found, f"importance-{kind}", kind, f"Importance, {kind}", caption))
        charts.append(_everywhere(found, over))
    text = (
        "Mass is what a site gives to a source, importance by how much the loss rises when the site reads without it. "
        "They need not agree. " + " ".join(map(_correlation_words, routed))
    )
    return Section(heading="Mass against importance", text=text, charts=charts)


def _correlation_words(found: Inspected) -> str:
    within = found["causal"]["rank_correlation"]["within_sites"]["renormalised"]
    if within["value"] is None:
        return f"Rank correlation for {found['name']}: undefined."
    ends = "" if within["low"] is None else f" ({LEVEL:.0%} {within['low']:.2f} to {within['high']:.2f})"
    return f"Rank correlation within sites for {found['name']}: {within['value']:.2f}{ends}."


def _map(found: Inspected, name: str, key: str, title: str, caption: str) -> HeatMap:
    labels, sites = found["routing"]["sources"], found["routing"]["sites"]
    cells = {(row["site"], row["source"]): row[key] for row in found["causal"]["knock_out"]["sites"]}
    is_mass = key == "mass"
    return HeatMap(
        name=f"{name}-{_slug(found)}",
        title=f"{title}: {found['name']}",
        caption=caption,
        x=SOURCE,
        y=SITE,
        columns=labels,
        rows=[str(site["site"]) for site in sites],
        value=Axis(label="mean routing weight") if is_mass else LOSS_CHANGE,
        values=[[cells.get((site["site"], source)) for source in range(len(labels))] for site in sites],
        diverging=not is_mass,
        limits=(0.0, 1.0) if is_mass else None,
    )


def _everywhere(found: Inspected, over: str) -> BarChart:
    rows = found["causal"]["knock_out"]["everywhere"]
    return BarChart(
        name=f"importance-everywhere-{_slug(found)}",
        title=f"A source knocked out everywhere: {found['name']}",
        caption=f"Change in loss when no site can read the source. Whiskers: {over}.",
        categories=[row["label"] for row in rows],
        y=LOSS_CHANGE,
        groups=[_bars(kind, [row[kind] for row in rows]) for kind in MISSING],
    )


def _worth(routed: list[Inspected], over: str) -> Section:
    swept = [found for found in routed if found["causal"]["strength"] is not None]
    charts: list[Chart] = [_selection(routed, over)] + ([_strength(swept, over)] if swept else [])
    unswept = [f"{found['name']}: {found['causal']['strength_note']}." for found in routed if found not in swept]
    text = "What choosing is worth, and how much of the routed branch the network wants. " + " ".join(unswept)
    return Section(heading="What selectivity is worth", text=text.strip(), charts=charts)


def _selection(routed: list[Inspected], over: str) -> BarChart:
    return BarChart(
        name="selection",
        title="Other weights in place of the learned ones",
        caption=f"Change in loss, all sites at once. Whiskers: {over}.",
        categories=[SELECTION_LABELS[name] for name in SELECTIONS],
        y=LOSS_CHANGE,
        groups=[_bars(found["name"], [found["causal"]["selection"][name] for name in SELECTIONS]) for found in routed],
    )


def _strength(swept: list[Inspected], over: str) -> LineChart:
    rows_by_name = [(found["name"], found["causal"]["strength"]) for found in swept]
    return LineChart(
        name="strength",
        title="Strength of the routed branch",
        caption=f"Change in loss when every read is scaled; 1 is the network as it is. Band: {over}.",
        x=Axis(label="strength", unit="times"),
        y=LOSS_CHANGE,
        series=[replace(_bars(name, rows), x=[row["strength"] for row in rows]) for name, rows in rows_by_name],
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
    for key, (name, title, label) in wanted.items():
        having = [f for f in routed if any(site[key] is not None for site in f["routing"]["sites"])]
        if having:
            charts.append(_by_site(having, key, name, title, label))
    text = (
        "How much the reads add, and how much their sources say the same: at a cosine of 1 there is nothing to choose."
    )
    return Section(heading="Stream and sources", text=text, charts=charts)


def _slug(found: Inspected) -> str:
    """For the names of files; they stay apart where names differ in other characters only."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", found["name"]).strip("-.") or "checkpoint"
    return plain if plain == found["name"] else f"{plain}-{found['number']}"
