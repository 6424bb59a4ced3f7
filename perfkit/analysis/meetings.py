"""When did each rank come to each collective, and how long did it wait for the others?

Conventions
-----------
A collective is the k-th of its process group, operation and size on every rank that has it, in order of start. Ranks
that recorded different numbers of them are matched from the first on, as far as all go. The clocks of the ranks must
be aligned, and the recordings begin with the same collective. The test of both is that all ranks are inside a
collective at one moment, `together`: none can leave it before all have come. What fails the test (the sender of a
broadcast need not wait either) tells nothing about who was late.

Functions
---------
matched       one row per collective and rank
firsts        the first row of each collective
with_start    the collectives that can be matched
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Int
from perfkit.analysis.statistics import numbered
from perfkit.schema import Column, Table
from perfkit.tables import COLLECTIVES, GPU, RANK

MATCHED = Table(
    "MATCHED",
    "a collective on one rank",
    (
        Column("collective", "int64", "number of the collective, by first start over the ranks"),
        RANK,
        GPU,
        Column("group", "category", "process group; missing when not recorded"),
        Column("operation", "category", "all_reduce, all_gather, ..."),
        Column("bytes", "int64", "message size as nccl-tests defines it, bytes"),
        Column("start_ns", "int64", "start on this rank, ns since the start of the capture"),
        Column("dur_ns", "float64", "duration on this rank, ns"),
        Column("wait_ns", "int64", "from its start on this rank to its start on the last rank, ns"),
        Column("together", "bool", "whether all ranks were inside it at one moment"),
    ),
    ("collective", "start_ns", "rank", "gpu"),
)
_SAME = ["group", "operation", "bytes", "ranks"]


def matched(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return every collective that several ranks recorded, on each of these ranks.

    Parameters
    ----------
    collectives
        COLLECTIVES of several ranks with aligned clocks; may be empty. Those without a start (benchmarks) are left
        out, and those of a process group that more ranks have than it has members: several groups share its name.

    Returns
    -------
    pandas.DataFrame
        MATCHED, at least two rows per collective, by start; a rank with several GPUs has a row for each.

    Raises
    ------
    SchemaError
        If `collectives` is not a COLLECTIVES table.

    Examples
    --------
    >>> matched(COLLECTIVES.empty()).columns.tolist()[:3]
    ['collective', 'rank', 'gpu']
    """
    timed = with_start(collectives)
    kinds, kind = numbered(timed, _SAME)
    members, member = numbered(timed, ["rank", "gpu"])
    by_start = np.argsort(timed["start_ns"].to_numpy(), kind="stable")
    pair = (kind * len(members) + member)[by_start]
    pairs, of, recorded = np.unique(pair, return_inverse=True, return_counts=True)
    position = _position(of, recorded)
    seen = np.bincount(pairs // max(len(members), 1), minlength=len(kinds))
    common = np.full(len(kinds), len(timed))
    np.minimum.at(common, pairs // max(len(members), 1), recorded)
    usable = (seen > 1) & ~(seen > kinds["ranks"].to_numpy("float64", na_value=np.nan))
    kept = usable[kind[by_start]] & (position < common[kind[by_start]])
    number = pd.factorize(kind[by_start][kept] * len(timed) + position[kept])[0]
    together = np.argsort(number, kind="stable")
    return MATCHED.make(_compared(timed.take(by_start[kept][together]), number[together]))


def _position(of: Int, count: Int) -> Int:
    """Return how many of the same group come before each, for groups of so many."""
    order = np.argsort(of, kind="stable")
    position = np.empty(len(of), np.int64)
    position[order] = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
    return position


def _compared(rows: pd.DataFrame, number: Int) -> pd.DataFrame:
    """Return the columns of MATCHED for rows in which those of one collective follow each other by start."""
    first = firsts(number)
    length = np.diff(first, append=len(rows))
    last_start = np.repeat(rows["start_ns"].to_numpy()[first + length - 1], length)
    end = (rows["start_ns"] + rows["dur_ns"]).to_numpy()
    first_end = np.repeat(np.fmin.reduceat(end, first), length) if len(first) else end
    return rows[["rank", "gpu", "group", "operation", "bytes", "start_ns", "dur_ns"]].assign(
        collective=number, wait_ns=last_start - rows["start_ns"], together=last_start < first_end
    )


def firsts(number: Int) -> Int:
    """Return the place of the first of each number, where equal ones follow each other."""
    return np.flatnonzero(np.diff(number, prepend=-1))


def with_start(collectives: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives that have a start, as int64."""
    timed = COLLECTIVES.check(collectives)[collectives["start_ns"].notna()]
    return timed.astype({"start_ns": "int64"})
