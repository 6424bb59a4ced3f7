"""What holds the memory of a GPU: a bar at its peak, areas over a recording; and which rank of a job waits."""

import altair as alt
import pandas as pd

from perfkit.charts import theme
from perfkit.charts.shares import bars, ends, figures
from perfkit.dumps.held import KINDS
from perfkit.format import percent, size

NO_MEMORY = "The snapshot holds no allocation."
HEIGHT = 220  # pixels
KIND_COLOURS = dict(zip(KINDS, theme.LINE_COLOURS, strict=False))
DARK = ("before the recording", "gradients", "optimizer state", "activations")
NO_RANK = "The dumps name no rank."
ROLES = {  # of `hang.ranks`, with its name and colour
    "suspect": ("waited for", "#D55E00"),
    "behind": ("behind in finished collectives", "#E0A010"),
    "ring": ("waits in a ring", "#884421"),
    "waits": ("waits for others", "#1F77D4"),
    "no difference": ("no difference seen", "#B4B4B4"),
}


def peak(alive: pd.DataFrame) -> alt.LayerChart:
    """Draw what holds the memory of a GPU when most is held, as one bar.

    `alive`: columns rank, gpu, kind (`held.KINDS`), bytes: the allocations at that moment, of one
    GPU.
    """
    whole = int(alive["bytes"].sum())
    if not whole:
        return theme.nothing("No memory", NO_MEMORY)
    held = alive.groupby("kind", observed=True)["bytes"].sum().reindex(KINDS).dropna()
    share = (held / whole).reset_index(drop=True)
    begin, end = ends(share, pd.Series(0, index=share.index))
    drawn = pd.DataFrame({"kind": held.index.astype(str), "begin": begin, "end": end})
    drawn = drawn.assign(
        label=f"GPU {alive['gpu'].iloc[0]}", share=share.map(percent), held=held.map(size).tolist()
    )
    largest = drawn.iloc[int(share.argmax())]
    shades = theme.colours(KIND_COLOURS, {}, drawn["kind"])
    tips = theme.hover("kind", "share", "held")
    return theme.layered(
        [
            bars(drawn, "kind", shades, axis="share of the peak memory", shown=tips),
            figures(drawn, "kind", DARK),
        ],
        f"Of {size(whole)} at the peak, {largest['share']} is {largest['kind']}",
        "Memory that tensors hold at the highest point of the recording.",
        picture=f"Stacked bar of {', '.join(drawn['kind'])}",
        size=(theme.WIDTH, alt.Step(34)),
    )


def ranks(found: pd.DataFrame) -> alt.LayerChart:
    """Draw each rank of a job that hangs in the colour of what it does.

    `found`: columns rank, role, waits_for, last, as from `hang.ranks`.
    """
    if found.empty:
        return theme.nothing("No ranks", NO_RANK)
    names = {role: name for role, (name, _) in ROLES.items()}
    colours = {role: colour for role, (_, colour) in ROLES.items()}
    drawn = found[["rank", "waits_for", "last"]].assign(role=found["role"].map(names))
    is_first = found["role"].eq("suspect")
    waited = ", ".join(found.loc[is_first, "rank"].astype(str)) or "none"
    cells = theme.marked(
        drawn,
        "rect",
        alt.X("rank:O", title="rank", axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        alt.Color("role:N", title=None, scale=theme.colours(colours, names, found["role"])),
        theme.hover("rank", "role", ("waits_for", "waits for ranks"), ("last", "last operation")),
        stroke="#808080",
        strokeWidth=0.5,
    )
    return theme.layered(
        [cells],
        f"Ranks that others wait for: {waited}",
        "One field per rank of the job.",
        picture="A row of ranks, coloured by what each does",
        size=(theme.WIDTH, 34),
    )


def over_time(levels: pd.DataFrame) -> alt.LayerChart:
    """Draw the memory that each kind holds, by the number of the event, of the GPU that holds most.

    `levels`: columns rank, gpu, event, kind, bytes, as from `held.over_time`.
    """
    if levels.empty:
        return theme.nothing("No memory", NO_MEMORY)
    highest = levels.iloc[int(levels["bytes"].argmax())]
    own = levels[levels["rank"].eq(highest["rank"]) & levels["gpu"].eq(highest["gpu"])]
    drawn = own[["event", "kind"]].astype({"kind": str})
    drawn = drawn.assign(gigabytes=own["bytes"] / 1e9, held=own["bytes"].map(size))
    kinds = sorted(drawn["kind"].unique())
    areas = theme.marked(
        drawn,
        "area",
        alt.X("event:Q", title="event of the allocator", axis=alt.Axis(grid=False)),
        alt.Y("gigabytes:Q", title="held by tensors (GB)", stack=True),
        alt.Color("kind:N", title=None, scale=theme.colours(KIND_COLOURS, {}, kinds)),
        theme.hover("kind", "held", ("event", "event", ",")),
    )
    return theme.layered(
        [areas],
        f"What holds the memory of GPU {highest['gpu']}",
        (
            f"Tensors after {drawn['event'].nunique():,} of the allocator's events; the peak may "
            "lie between two."
        ),
        picture=f"Stacked areas of {', '.join(kinds)}",
        size=(theme.WIDTH + theme.LABEL_WIDTH, HEIGHT),
    )
