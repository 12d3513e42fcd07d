"""Drawing routing: which source each site reads, and how sharply."""

import math
from typing import Any

from lightning_dar.diagnostics.probe import SiteRouting


def draw_routing(sites: dict[int, SiteRouting], title: str) -> Any:
    """A matplotlib figure: mean routing weight, site by source, beside each site's sharpness against uniform.

    Drawn without pyplot, so that no window system is needed and no figure outlives its use.
    """
    import numpy as np
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    columns = max(routing.num_sources for routing in sites.values())
    grid = np.full((max(sites) + 1, columns), np.nan)
    for site, routing in sites.items():
        grid[site, : routing.num_sources] = routing.mean_weights.numpy()

    figure = Figure(figsize=(9.5, max(3.2, 1.6 + 0.17 * len(grid))), dpi=150, layout="constrained")
    weights, sharpness = figure.subplots(1, 2, width_ratios=[2.4, 1], sharey=True)
    scale = PowerNorm(0.5, vmin=0, vmax=1)  # of 70 sources few have a weight that a linear scale would show
    image = weights.imshow(grid, aspect="auto", cmap="viridis", norm=scale, interpolation="nearest")
    weights.set_title("mean routing weight")
    weights.set(xlabel="source (0 is the oldest)", ylabel="site (even: attention, odd: MLP)")
    figure.colorbar(image, ax=weights, pad=0.02)

    rows = list(sites)
    sharpness.plot([sites[row].sharpness for row in rows], rows, "o-", color="C0", ms=3, label="largest weight")
    sharpness.plot([1 / sites[row].num_sources for row in rows], rows, "--", color="0.5", label="uniform, 1/n")
    sharpness.set(xlim=(0, 1.02), xlabel="mean over tokens", title="sharpness")
    sharpness.grid(alpha=0.3)
    sharpness.legend(fontsize="small", loc="best")
    ticks = max(1, math.ceil(len(grid) / 24))
    weights.set_yticks(range(0, len(grid), ticks))
    weights.set_xticks(range(0, columns, max(1, math.ceil(columns / 16))))
    figure.suptitle(title)
    return figure


def pixels(figure: Any) -> Any:
    """uint8 [height, width, 3]: drawn once, for the logs and the file."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def save_png(picture: Any, path: str) -> None:
    """To a file, or behind a URL."""
    import fsspec
    from matplotlib.image import imsave

    with fsspec.open(path, "wb", auto_mkdir=True) as file:
        imsave(file, picture, format="png")
