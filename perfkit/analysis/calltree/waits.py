"""What do the warps of all kernels wait for?

Functions
---------
stall_shares    each stall reason's share of a program's or an entry point's stalls
summed          the shares in groups of contexts
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.calltree.paths import rows_of, text
from perfkit.analysis.intervals import Int
from perfkit.analysis.stalls import shares
from perfkit.analysis.statistics import numbered
from perfkit.schema import Column, Table
from perfkit.tables import CALLTREE, RANK, STALLS

STALL_SHARES = Table(
    "STALL_SHARES",
    "a stall reason of all kernels",
    (
        RANK,
        Column("entry", "string", "entry point; NA for all together"),
        Column("reason", "category", "stall reason"),
        Column("value", "float64", "samples, or cycles estimated from them, as the source counts them"),
        Column("share_frac", "float64", "share of the sum over the reasons"),
        Column("place", "Int64", "1 for the largest stall; NA for what is no stall"),
    ),
    ("rank", "entry"),
)


def stall_shares(calltree: pd.DataFrame, stalls: pd.DataFrame, *, by: str = "rank") -> pd.DataFrame:
    """Return the share of each stall reason in all kernels' stalls: of samples, not of time.

    share = value summed over all contexts / sum over the reasons, totals left out.

    Parameters
    ----------
    calltree
        CALLTREE; may be empty.
    stalls
        STALLS; the rows of launches are left out.
    by
        "rank": the whole program; "entry": per entry point.

    Returns
    -------
    pandas.DataFrame
        STALL_SHARES, by rank (and entry), largest value first. `entry` string, NA with
        by="rank"; `reason` category; `value` float64; `share_frac` float64 in 0..1; `place` Int64.

    Raises
    ------
    SchemaError
        If a frame is not what its table promises.
    ValueError
        If `by` is neither.
    PerfkitError
        If a value is negative.

    Examples
    --------
    >>> len(stall_shares(CALLTREE.empty(), STALLS.empty()))
    0
    """
    if by not in ("rank", "entry"):
        raise ValueError(f"by: {by!r} is not one of ['rank', 'entry']")
    CALLTREE.check(calltree)
    of_node = STALLS.check(stalls)[stalls["node"].ge(0)]
    at = rows_of(calltree, of_node["rank"].to_numpy(np.int64), of_node["node"].to_numpy())
    of_node = of_node.assign(entry=text(calltree["entry"], at if by == "entry" else np.full(len(at), -1)).to_numpy())
    keys, group = numbered(of_node, ["rank", "entry"])
    found = summed(of_node, group)
    return STALL_SHARES.make(found.join(keys, on="node").drop(columns="node"))


def summed(stalls: pd.DataFrame, group: Int) -> pd.DataFrame:
    """Return the shares of the reasons in each group's stalls; the group is in column `node`."""
    keys, of = numbered(stalls.assign(group=group), ["group", "reason"])
    value = np.bincount(of, stalls["value"].to_numpy(), len(keys))
    frame = {"rank": 0, "launch": -1, "node": keys["group"], "reason": keys["reason"], "value": value}
    return shares(STALLS.make(pd.DataFrame(frame)), by="node").drop(columns="rank")
