"""What do the idle times of devices add up to, and which of them last longest?

Functions
---------
idle_by_cause   their sums per device and cause
longest         those that last longest
histogram       their sums per length and cause

Data
----
GAPS    the table of idle times, which `perfkit.analysis.gaps` fills
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.causes import CAUSES
from perfkit.analysis.intervals import share
from perfkit.analysis.statistics import counted, numbered
from perfkit.schema import Column, Table
from perfkit.tables import DUR, GPU, RANK, START

GAPS = Table(
    "GAPS",
    "an interval in which a device does nothing",
    (
        RANK,
        GPU,
        START,
        DUR,
        Column("cause", "category", "one of CAUSES"),
        Column("detail", "category", "one of DETAILS; missing unless the cause is host_wait"),
        Column("api", "category", "CUDA call that covers most of the wait; missing if none covers any"),
        Column("range", "category", "innermost range over at least half of the wait; missing if there is none"),
        Column("process", "int64", "process of the launch call; -1 if the gap is unattributed or an edge"),
        Column("thread", "int64", "thread of the launch call; -1 if the gap is unattributed or an edge"),
    ),
    ("rank", "gpu", "start_ns"),
)


def idle_by_cause(gaps: pd.DataFrame) -> pd.DataFrame:
    """Return how much of each device's idle time each cause accounts for.

    Parameters
    ----------
    gaps
        Table `GAPS`, as `idle_gaps` returns it; may be empty.

    Returns
    -------
    pandas.DataFrame
        One row per rank, gpu, cause and detail that occur (detail missing unless host_wait), by falling
        total_ns within a device: count (gaps), total_ns, max_ns (ns) and share_frac, the part of the device's
        idle time in `gaps`, 0..1.

    Raises
    ------
    SchemaError
        If `gaps` does not match its schema.

    Examples
    --------
    >>> idle_by_cause(GAPS.empty()).columns.tolist()
    ['rank', 'gpu', 'cause', 'detail', 'count', 'total_ns', 'max_ns', 'share_frac']
    """
    found, group = numbered(GAPS.check(gaps), ["rank", "gpu", "cause", "detail"])
    count, total_ns, longest = counted(gaps["dur_ns"].to_numpy(), group, len(found))
    found = found.assign(count=count, total_ns=total_ns)
    idle = found.groupby(["rank", "gpu"])["total_ns"].transform("sum").to_numpy()
    found = found.assign(max_ns=longest, share_frac=share(found["total_ns"].to_numpy(), idle))
    return found.sort_values(["rank", "gpu", "total_ns"], ascending=[True, True, False], ignore_index=True)


def longest(gaps: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the longest gaps, the longest first, ties in their order; of millions without sorting the others.

    Parameters
    ----------
    gaps
        Table `GAPS`, as `idle_gaps` returns it; may be empty.
    most
        Number of gaps to return, at least 1; all if there are no more.

    Returns
    -------
    pandas.DataFrame
        The rows of `gaps`, with their index.

    Raises
    ------
    SchemaError, ValueError
        If `gaps` does not match its schema, or `most` is below 1.

    Examples
    --------
    >>> longest(GAPS.empty(), 9).empty
    True
    """
    if most < 1:
        raise ValueError(f"most: {most} is not at least 1")
    length = GAPS.check(gaps)["dur_ns"].to_numpy()
    rows = np.arange(len(length))
    if len(length) > most:
        rows = np.flatnonzero(length >= np.partition(length, -most)[-most])
    return gaps.take(rows[np.argsort(-length[rows], kind="stable")][:most])


def histogram(gaps: pd.DataFrame) -> pd.DataFrame:
    """Return how many gaps of each length there are, and how long they are together, per cause.

    Bins are half open, with edges at 1, 2 and 5 times powers of ten ns, from the shortest to the longest gap.

    Parameters
    ----------
    gaps
        Table `GAPS`, as `idle_gaps` returns it; all its devices are taken together; may be empty.

    Returns
    -------
    pandas.DataFrame
        One row per bin and cause that occurs, by lower_ns, then cause: lower_ns, upper_ns (int64 ns), cause,
        count (gaps, may be 0), total_ns (ns).

    Raises
    ------
    SchemaError
        If `gaps` does not match its schema.

    Examples
    --------
    >>> histogram(GAPS.empty()).columns.tolist()
    ['lower_ns', 'upper_ns', 'cause', 'count', 'total_ns']
    """
    length = GAPS.check(gaps)["dur_ns"].to_numpy()
    edges = np.array([step * 10**power for power in range(18) for step in (1, 2, 5)])
    bin_ = np.searchsorted(edges, length, side="right") - 1
    shown = np.arange(bin_.min(initial=len(edges)), bin_.max(initial=-1) + 1)
    cause = gaps["cause"].cat.codes.to_numpy()
    causes = np.unique(cause)
    cell = (bin_ - shown[0]) * len(causes) + np.searchsorted(causes, cause) if len(shown) else bin_
    count, total_ns, _ = counted(length, cell, len(shown) * len(causes))
    return pd.DataFrame(
        {
            "lower_ns": np.repeat(edges[shown], len(causes)),
            "upper_ns": np.repeat(edges[shown + 1], len(causes)),
            "cause": pd.Categorical.from_codes(np.tile(causes, len(shown)), pd.Index(CAUSES)),
            "count": count,
            "total_ns": total_ns,
        }
    )
