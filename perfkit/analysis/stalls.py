"""Why do the warps of a kernel wait instead of issuing instructions?

Conventions
-----------
A stall reason's value is a number of samples, or the cycles a warp spent on it per issued instruction; a
table holds one form per launch. Either way a reason's share is its part of the sum over the reasons of
its launch (or call-tree node). `selected` is the cycle in which the warp did issue: it counts in the
sum, as in the vendor's warp latency, but is no stall and gets no place. Totals such as `stl_any`, which are the sum of
the others, are left out. Waiting warps cost nothing while another one can issue.

Data
----
words       what a reason means to a person, and what usually helps

Functions
---------
shares      share and place of every reason, per launch or call-tree node
main        the largest stall of each launch or node
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.analysis.stall_words import ISSUING, TOTALS, Words, words
from perfkit.errors import PerfkitError
from perfkit.tables import STALLS

__all__ = ["Words", "main", "shares", "words"]

KEYS: Mapping[str, list[str]] = {"launch": ["rank", "launch"], "node": ["rank", "node"]}


def shares(stalls: pd.DataFrame, *, by: str = "launch") -> pd.DataFrame:
    """Return each stall reason's share of its launch's (or node's) waiting, largest first.

    share = value / sum of the values of the launch, totals left out.

    Parameters
    ----------
    stalls
        STALLS; may be empty.
    by
        "launch" looks at the rows of launches, "node" at those of call-tree nodes.

    Returns
    -------
    pandas.DataFrame
        By rank and launch (node), then falling value, ties by reason. `rank` int32, `launch` or `node` int64,
        `reason` category, `value` float64 as in STALLS, `share_frac` float64 in 0..1, NaN where the sum is 0
        or the value is missing, `place` Int64, 1 for the largest stall, NA for what is no stall (`selected`).

    Raises
    ------
    SchemaError
        If `stalls` is not a STALLS table.
    ValueError
        If `by` is neither.
    PerfkitError
        If a value is negative.

    References
    ----------
    Nsight Compute, Kernel Profiling Guide, "Warp Stall Reasons" and section WarpStateStats.

    Examples
    --------
    >>> shares(STALLS.empty()).columns.tolist()
    ['rank', 'launch', 'reason', 'value', 'share_frac', 'place']
    """
    if by not in KEYS:
        raise ValueError(f"by: {by!r} is not one of {list(KEYS)}")
    STALLS.check(stalls)
    wanted = (stalls[by].to_numpy() >= 0) & ~_among(stalls["reason"], TOTALS)
    frame = stalls.loc[wanted, [*KEYS[by], "reason", "value"]].reset_index(drop=True)
    value = frame["value"].to_numpy()
    if (value < 0).any():
        raise PerfkitError(f"stalls: a value is {np.nanmin(value):g}, below 0. Record the counters again.")
    group = _groups(frame, KEYS[by])
    total = np.bincount(group, np.nan_to_num(value))
    frame["share_frac"] = value / np.where(total > 0, total, np.nan)[group]
    # STALLS is sorted by reason within a launch, and the sort is stable: ties stay in that order.
    order = np.lexsort([-value, group])
    frame = frame.take(order).reset_index(drop=True)
    return frame.assign(place=_place(frame, group))


def _groups(frame: pd.DataFrame, keys: list[str]) -> Int:
    """Number the launches (nodes), whose rows stand together in STALLS."""
    new = np.zeros(len(frame), bool)
    for key in keys:
        new[1:] |= np.diff(frame[key].to_numpy()) != 0
    return np.cumsum(new)


def _place(frame: pd.DataFrame, group: Int) -> pd.Series:
    """Number the stalls of each group from 1, what issued and what was not measured left out."""
    stalled = frame["value"].notna().to_numpy() & ~_among(frame["reason"], ISSUING)
    count = np.cumsum(stalled)
    first = np.searchsorted(group, np.arange(group.max(initial=-1) + 1))
    place: Int = count - (count - stalled)[first][group]
    return pd.Series(pd.arrays.IntegerArray(place.astype(np.int64), ~stalled))


def _among(reason: pd.Series, names: frozenset[str]) -> NDArray[np.bool_]:
    """Whether each reason is one of `names`, which are lower case; a tool's prefix up to a colon does not count."""
    known = [str(category).lower().rpartition(":")[2] in names for category in reason.cat.categories]
    return np.array([*known, False])[reason.cat.codes.to_numpy()]


def main(stalls: pd.DataFrame, *, by: str = "launch") -> pd.DataFrame:
    """Return the largest stall of each launch or call-tree node, with what it means.

    Parameters
    ----------
    stalls, by
        As in `shares`.

    Returns
    -------
    pandas.DataFrame
        One row per launch (node) that has a stall above 0: the columns of `shares` without place, and `means`
        and `helps`, string, empty for a reason that `words` does not know.

    Raises
    ------
    SchemaError, ValueError, PerfkitError
        As in `shares`.

    Examples
    --------
    >>> len(main(STALLS.empty()))
    0
    """
    found = shares(stalls, by=by)
    largest = found[found["place"].eq(1).fillna(False).astype(bool) & found["value"].gt(0)].drop(columns="place")
    said = [words.get(reason, Words("", "")) for reason in largest["reason"].astype(str)]
    return largest.assign(
        means=pd.array([each.means for each in said], dtype="string"),
        helps=pd.array([each.helps for each in said], dtype="string"),
    ).reset_index(drop=True)
