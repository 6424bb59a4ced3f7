"""Which operator launched each kernel, and which kernels does each operator launch?

Conventions
-----------
As in `perfkit.analysis.operators`.

Functions
---------
kernels_of    the operator of each kernel
launched      the kernels of each operator
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.operators.nesting import launching, named, parents, starts_inside
from perfkit.analysis.statistics import grouped, in_unit, numbered, ranked
from perfkit.analysis.window import Window, cut
from perfkit.tables import API_CALLS, KERNELS, OPS

HOW = ("launch", "outside", "none")


def kernels_of(
    ops: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return the operator that launched each kernel: the innermost one that runs when the launch call begins.

    Parameters
    ----------
    ops, kernels, api_calls
        OPS, KERNELS and API_CALLS of one execution; may be empty.
    window
        (start_ns, end_ns): only kernels that start in it; every kernel when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per kernel, with the index of `kernels`: `rank` int32; `op` int64, as in OPS, unique in its rank, -1
        where there is none; `how` category: "launch", launched in that operator; "outside", the launch call lies in no
        operator; "none", no launch call is recorded.

    Raises
    ------
    SchemaError
        If a table does not match its schema.
    ValueError
        If the window does not end after it starts.

    Examples
    --------
    >>> kernels_of(OPS.empty(), KERNELS.empty(), API_CALLS.empty()).columns.tolist()
    ['rank', 'op', 'how']
    """
    call, row = launching(OPS.check(ops), parents(ops), KERNELS.check(kernels), API_CALLS.check(api_calls))
    how = np.select([row >= 0, call >= 0], [0, 1], 2)
    found = kernels[["rank"]].assign(
        op=np.append(ops["op"].to_numpy(), -1)[row], how=pd.Categorical.from_codes(how, pd.Index(HOW))
    )
    return found[starts_inside(kernels, window)]


def launched(
    ops: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return count and time of the kernels that each operator launches itself, per operator and kernel name.

    Parameters
    ----------
    ops, kernels, api_calls
        OPS, KERNELS and API_CALLS of one execution; may be empty.
    window
        (start_ns, end_ns): kernels count with the part inside; everything when omitted.

    Returns
    -------
    pandas.DataFrame
        By falling `total_ns`, ties by falling count, then names: `operator` category, missing for kernels without
        operator; `kernel` category, the kernel's name; `count` int64; `total_ns`, `min_ns`, `max_ns` int64; `mean_ns`,
        `median_ns` float64; `std_ns` float64, of a sample, NaN for one launch; `share_frac` float64, 0..1, total_ns
        over the time of all kernels, NaN where that is 0.

    Raises
    ------
    SchemaError
        If a table does not match its schema.
    ValueError
        If the window does not end after it starts.

    Examples
    --------
    >>> launched(OPS.empty(), KERNELS.empty(), API_CALLS.empty()).columns.tolist()[:4]
    ['operator', 'kernel', 'count', 'total_ns']
    """
    _, row = launching(OPS.check(ops), parents(ops), KERNELS.check(kernels), API_CALLS.check(api_calls))
    inside = cut(kernels.rename(columns={"name": "kernel"}).assign(operator=named(ops, row)), window)
    names, group = numbered(inside, ["operator", "kernel"])
    table = names.join(in_unit(grouped(inside["dur_ns"].to_numpy(), group, len(names)), "ns"))
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    return ranked(table, "total_ns", ["operator", "kernel"])
