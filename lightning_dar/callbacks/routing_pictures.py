"""Pictures of routing while a network trains: which sources each site reads, and how sharply."""

from dataclasses import replace

from lightning_dar.charts.chart import Series
from lightning_dar.charts.page import picture
from lightning_dar.diagnostics.probe import DEPTHS, SiteRouting, depth_third, mean_sharpness
from lightning_dar.diagnostics.routing_charts import by_site, line, shares, uniform, weights

Sites = dict[int, SiteRouting]


def draw_routing(sites: Sites, title: str) -> bytes:
    """A PNG: mean routing weight, site by source, beside each site's sharpness against uniform."""
    columns = max(routing.num_sources for routing in sites.values())
    by_source = {site: routing.mean_weights.tolist() for site, routing in sites.items()}
    heat_map = weights("what each site reads", {0: [], **by_source}, [str(source) for source in range(columns)])
    sharpness = by_site({"largest weight": sites}, "sharpness", "sharpness", "mean over tokens")
    sharpness = replace(sharpness, upright=True, series=[*sharpness.series, uniform("uniform, 1/n", sites)])
    return picture([heat_map, sharpness], title, across=True)


def draw_by_depth(sites: Sites, num_sites: int, title: str) -> bytes:
    """A PNG of three panels over the sites: sharpness against uniform, with the mean of each third of the depth;
    effective number of sources against their number; where the largest weight lies, as shares of tokens."""
    sharpness = by_site({"largest weight": sites}, "sharpness", "sharpness", "mean over tokens")
    thirds = [_third(third, sites, num_sites) for third in DEPTHS]
    references = [*(series for series in thirds if series is not None), uniform("uniform, 1/n", sites)]
    sharpness = replace(sharpness, series=[*sharpness.series, *references])
    effective = by_site({"exp(entropy)": sites}, "effective_sources", "effective number of sources", "sources")
    number = line("number of sources, n", sites, lambda site: site.num_sources, dashed=True)
    effective = replace(effective, series=[*effective.series, number])
    return picture([sharpness, effective, shares("source with the largest weight", sites)], title)


def _third(third: str, sites: Sites, num_sites: int) -> Series | None:
    """The mean over a third of the depth, as a level; None where it has no routed site."""
    inside = [site for site in sites if depth_third(site, num_sites) == third]
    if not inside:
        return None
    mean = mean_sharpness(sites, num_sites, third)
    return Series(name=f"{third} third: {mean:.3f}", x=[inside[0] - 0.4, inside[-1] + 0.4], y=[mean, mean])
