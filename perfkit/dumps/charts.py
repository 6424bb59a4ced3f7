"""What holds the memory of a GPU over a recording: stacked areas by kind."""

import altair as alt
import pandas as pd

from perfkit.charts import theme
from perfkit.format import size

NO_MEMORY = "The snapshot holds no allocation."
HEIGHT = 220  # pixels


def over_time(levels: pd.DataFrame, *, title: str = "") -> alt.LayerChart:
    """Draw the memory that each kind holds, by the number of the event, of the GPU that holds most.

    `levels`: columns rank, gpu, event, kind, bytes, as from `held.over_time`.
    """
    if levels.empty:
        return theme.nothing(title or "No memory", NO_MEMORY)
    highest = levels.iloc[int(levels["bytes"].argmax())]
    own = levels[levels["rank"].eq(highest["rank"]) & levels["gpu"].eq(highest["gpu"])]
    drawn = own[["event", "kind"]].astype({"kind": str})
    drawn = drawn.assign(gigabytes=own["bytes"] / 1e9, held=own["bytes"].map(size))
    kinds = sorted(drawn["kind"].unique())
    palette = dict(zip(kinds, theme.LINE_COLOURS, strict=False))
    areas = theme.marked(
        drawn,
        "area",
        alt.X("event:Q", title="event of the allocator", axis=alt.Axis(grid=False)),
        alt.Y("gigabytes:Q", title="held by tensors (GB)", stack=True),
        alt.Color("kind:N", title=None, scale=theme.colours(palette, {}, kinds)),
        theme.hover("kind", "held", ("event", "event", ",")),
    )
    return theme.layered(
        [areas],
        title or f"What holds the memory of GPU {highest['gpu']}",
        f"Tensors after {drawn['event'].nunique():,} of the allocator's events; the peak may lie between two.",
        picture=f"Stacked areas of {', '.join(kinds)}",
        size=(theme.WIDTH + theme.LABEL_WIDTH, HEIGHT),
    )
