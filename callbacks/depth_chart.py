"""Drawing routing against depth: how sharp it is, over how many sources it spreads, and where it looks."""

from typing import Any

from lightning_dar.diagnostics.probe import DEPTHS, SiteRouting, depth_third

SHARES = {"share_embedding": "embedding", "share_older": "older", "share_newest": "newest"}


def draw_by_depth(sites: dict[int, SiteRouting], num_sites: int, title: str) -> Any:
    """A matplotlib figure of three panels over the sites: sharpness against uniform, with the mean of each third of
    the depth; effective number of sources against their number; where the largest weight lies, as shares of tokens.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 7.5), dpi=150, layout="constrained")
    sharpness, effective, shares = figure.subplots(3, 1, sharex=True)
    x, measured = list(sites), list(sites.values())

    sharpness.plot(x, [site.sharpness for site in measured], "o-", color="C0", ms=3, label="largest weight")
    sharpness.plot(x, [1 / site.num_sources for site in measured], "--", color="0.5", label="uniform, 1/n")
    for third in DEPTHS:
        inside = [site for site in x if depth_third(site, num_sites) == third]
        if inside:
            mean = sum(sites[site].sharpness for site in inside) / len(inside)
            sharpness.hlines(mean, inside[0] - 0.5, inside[-1] + 0.5, color="C1", label=f"{third} third: {mean:.3f}")
    sharpness.set(ylim=(0, 1.02), ylabel="mean over tokens", title="sharpness")

    effective.plot(x, [site.effective_sources for site in measured], "o-", color="C0", ms=3, label="exp(entropy)")
    effective.plot(x, [site.num_sources for site in measured], "--", color="0.5", label="number of sources, n")
    effective.set(ylim=(0, None), ylabel="sources", title="effective number of sources")

    rows = [[getattr(site, name) for site in measured] for name in SHARES]
    base = [0.0] * len(x)
    for row, label, color in zip(rows, SHARES.values(), ("C0", "0.8", "C1"), strict=True):
        shares.bar(x, row, bottom=base, width=0.9, color=color, label=label)
        base = [low + high for low, high in zip(base, row, strict=True)]
    shares.set(ylim=(0, 1), xlabel="site (even: attention, odd: MLP)", ylabel="share of tokens")
    shares.set_title("source with the largest weight")
    shares.xaxis.set_major_locator(MaxNLocator(integer=True))

    for panel in (sharpness, effective, shares):
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(title)
    return figure
