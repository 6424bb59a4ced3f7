"""What holds the memory of a GPU over a recording: stacked areas by kind."""

import altair as alt
import pandas as pd

from perfkit.charts.theme import WIDTH, nothing

NO_MEMORY = "The snapshot holds no allocation."


def over_time(levels: pd.DataFrame, *, title: str = "") -> alt.LayerChart | alt.Chart:
    """Draw the memory that each kind holds, by the number of the event, of the GPU that holds most.

    `levels`: columns rank, gpu, event, kind, bytes, as from `held.over_time`.
    """
    if levels.empty:
        return nothing(title or "No memory", NO_MEMORY)
    highest = levels.iloc[int(levels["bytes"].argmax())]
    gpu = highest["gpu"]
    own = levels[levels["rank"].eq(highest["rank"]) & levels["gpu"].eq(gpu)]
    drawn = own[["event", "kind"]].assign(gigabytes=own["bytes"] / 1e9)
    chart: alt.Chart = (
        alt.Chart(drawn, title=title or f"What holds the memory of GPU {gpu}, in GB")
        .mark_area()
        .encode(
            alt.X("event:Q", title="event of the allocator"),
            alt.Y("gigabytes:Q", title="held, GB", stack=True),
            alt.Color("kind:N", title="kind"),
            tooltip=["event:Q", "kind:N", "gigabytes:Q"],
        )
        .properties(width=WIDTH, height=220)
    )
    return chart
