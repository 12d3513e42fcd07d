"""Charts of routing by depth, for the callbacks and for `inspect`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lightning_dar.charts.chart import Axis, HeatMap, LineChart, Series

SITE = Axis(label="site (even: attention, odd: MLP)")
SOURCE = Axis(label="source (0 is the oldest)")
SHARES = {"embedding": "share_embedding", "newest source": "share_newest", "an older one": "share_older"}


class SiteNumbers(Protocol):
    """What the charts read of a site; None where a site of one source has none."""

    num_sources: int
    sharpness: float | None
    effective_sources: float | None
    share_embedding: float | None
    share_newest: float | None
    share_older: float | None


Sites = Mapping[int, Any]  # by number, SiteNumbers for the charts of routing


def by_site(
    runs: Mapping[str, Sites], field: str, title: str, label: str, unit: str = "", name: str | None = None
) -> LineChart:
    """One line per run: the field of its sites."""
    return LineChart(
        name=name or field,
        title=title,
        caption="Mean over tokens, site by site. A site behind the last sublayer is the final read.",
        x=SITE,
        y=Axis(label=label, unit=unit),
        series=[line(name, sites, lambda site: getattr(site, field)) for name, sites in runs.items()],
    )


def line(name: str, sites: Sites, value: Callable[[Any], float | None], dashed: bool = False) -> Series:
    return Series(name=name, x=[float(s) for s in sites], y=[value(site) for site in sites.values()], dashed=dashed)


def uniform(name: str, sites: Sites) -> Series:
    """The sharpness of uniform weights, as a reference."""
    return line(name, sites, lambda site: 1 / site.num_sources if site.num_sources > 1 else None, dashed=True)


def shares(title: str, sites: Sites, name: str = "shares") -> LineChart:
    """Draws where the largest weight lies, as shares of tokens."""
    return LineChart(
        name=name,
        title=title,
        caption="Share of tokens whose largest weight lies on the embedding, the newest source or an older one.",
        x=SITE,
        y=Axis(label="share of tokens"),
        series=[line(name, sites, lambda site, field=field: getattr(site, field)) for name, field in SHARES.items()],
        stacked=True,
    )


def weights(
    title: str, sites: Mapping[int, Sequence[float]], sources: Sequence[str], name: str = "mass", x: Axis = SOURCE
) -> HeatMap:
    """Mean routing weights, site by source. Of 70 sources few have a weight that a linear scale would show."""
    rows = range(min(sites), max(sites) + 1)
    return HeatMap(
        name=name,
        title=title,
        caption="Mean routing weight, over tokens.",
        x=x,
        y=SITE,
        columns=list(sources),
        rows=[str(site) for site in rows],
        value=Axis(label="mean routing weight"),
        values=[[*(found := sites.get(site, ())), *[None] * (len(sources) - len(found))] for site in rows],
        root=True,
        limits=(0.0, 1.0),
    )
