"""Pictures of NCCL Inspector: how fast transfers are, and how long each rank waits for the last one."""

import altair as alt
import pandas as pd

from perfkit.charts import ranks, theme
from perfkit.charts.shares import bars, ends, figures
from perfkit.format import percent

NO_COLLECTIVE = "No collective was recorded by all of its ranks."
PARTS = {"transfer": "#1F77D4", "waiting": "#D55E00"}
MOST_RANKS = 32


def bandwidth(transfers: pd.DataFrame) -> alt.LayerChart | alt.VConcatChart:
    """Draw the bus bandwidth of each operation against the message size.

    `transfers`: as from `transfers.transfers`.
    """
    without = transfers.assign(group=None, placement="without the wait")
    return ranks.bandwidth(without.astype({"operation": object}))


def waiting(waits: pd.DataFrame) -> alt.LayerChart:
    """Draw how much of its time in collectives each rank waits for the last one.

    `waits`: columns rank, transfer_ns, wait_ns, as from `transfers.waits`.
    """
    if waits.empty:
        return theme.nothing("No transfers", NO_COLLECTIVE)
    share = waits["wait_ns"] / (waits["transfer_ns"] + waits["wait_ns"]).clip(lower=1)
    labels = "rank " + waits["rank"].astype(str)
    least = waits.assign(label=labels, waiting=share, transfer=1 - share)
    least = least.nsmallest(MOST_RANKS, "waiting").sort_values("rank", kind="stable")
    rows = least.melt(["label"], [*PARTS], var_name="part", value_name="share")
    begin, end = ends(rows["share"], rows["label"])
    drawn = rows.assign(begin=begin, end=end, share=rows["share"].map(percent))
    scale = alt.Scale(domain=[*PARTS], range=[*PARTS.values()])
    tips = theme.hover(("label", "rank"), "part", "share")
    few = f" Of {len(waits)} ranks the ones that wait least." if len(waits) > len(least) else ""
    return theme.layered(
        [
            bars(drawn, "part", scale, axis="share of the time in collectives", shown=tips),
            figures(drawn, "part", ("transfer",)),
        ],
        f"Ranks wait {percent(share.min())} to {percent(share.max())} of their time in collectives",
        f"The transfer is the shortest time over the ranks. A late rank waits least.{few}",
        picture="Stacked bar per rank of transfer and waiting",
        size=(theme.WIDTH, alt.Step(24)),
    )
