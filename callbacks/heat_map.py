"""Drawing routing: which source each site reads, and how sharply."""

import math
from typing import Any

from lightning_dar.diagnostics.probe import SiteRouting


def draw_routing(sites: dict[int, SiteRouting], title: str) -> Any:
    """A matplotlib figure: mean routing weight, site by source, beside each site's sharpness against uniform.

    Drawn without pyplot, so that no window system is needed and no figure outlives its use.
    """
    import numpy as np
    from matplotlib.figure import Figure

    columns = max(routing.num_sources for routing in sites.values())
    grid = np.full((max(sites) + 1, columns), np.nan)
    for site, routing in sites.items():
        grid[site, : routing.num_sources] = routing.mean_weights.numpy()

    figure = Figure(figsize=(9.5, max(3.2, 1.6 + 0.17 * len(grid))), layout="constrained")
    weights, sharpness = figure.subplots(1, 2, width_ratios=[2.4, 1], sharey=True)
    image = weights.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    weights.set_title("mean routing weight")
    weights.set(xlabel="source (0 is the oldest)", ylabel="site (even: attention, odd: MLP)")
    figure.colorbar(image, ax=weights, pad=0.02)

    rows = list(sites)
    sharpness.plot([sites[row].sharpness for row in rows], rows, "o-", color="C0", ms=3, label="largest weight")
    sharpness.plot([1 / sites[row].num_sources for row in rows], rows, "--", color="0.5", label="uniform, 1/n")
    sharpness.set(xlim=(0, 1.02), xlabel="mean over tokens", title="sharpness")
    sharpness.grid(alpha=0.3)
    sharpness.legend(fontsize="small", loc="lower right")
    ticks = max(1, math.ceil(len(grid) / 24))
    weights.set_yticks(range(0, len(grid), ticks))
    weights.set_xticks(range(0, columns, max(1, math.ceil(columns / 16))))
    figure.suptitle(title)
    return figure
