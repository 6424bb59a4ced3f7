"""Which Python functions take the time of their threads?

Conventions: times are ns. The own time of a call is its duration without that of the calls directly
inside it, Python and built-in functions alike. The total time of a function counts a call inside a
call of the same function once.

Measures:

- `summary`: own and total time by function.
"""

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Int
from perfkit.tables import OPS, PYTHON_CALLS

THREAD = ["rank", "process", "thread"]


def summary(python_calls: pd.DataFrame, ops: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the functions by falling own time.

    Where some threads run operators, the others are left out: they mostly wait, such as those of a
    notebook's kernel.

    Parameters ---------- python_calls : PYTHON_CALLS, may be empty ops : OPS, may be empty

    Returns
    -------
    DataFrame with `name`, text; `count`, calls; `own_ns` and `total_ns`, int64;
    `share_frac`, own time over the own time of all functions, 0 to 1.
    """
    calls = _working(PYTHON_CALLS.check(python_calls), OPS.given(ops))
    times = pd.DataFrame(
        {
            "name": calls["name"].astype(str),
            "own_ns": _own(calls),
            "total_ns": calls["dur_ns"].where(~_is_repeated(calls), 0),
        }
    )
    by_name = times.groupby("name", sort=False)
    made = by_name[["own_ns", "total_ns"]].sum()
    made.insert(0, "count", by_name.size())
    made["share_frac"] = made["own_ns"] / max(int(made["own_ns"].sum()), 1)
    return made.sort_values("own_ns", ascending=False, kind="stable").reset_index()


def _working(calls: pd.DataFrame, ops: pd.DataFrame) -> pd.DataFrame:
    """Return the calls of threads that run operators; all of them where none does."""
    threads = OPS.check(ops)[THREAD].drop_duplicates()
    known = calls[THREAD].merge(threads, how="left", on=THREAD, indicator=True)["_merge"]
    works = known.eq("both").to_numpy()
    return calls[works] if works.any() else calls


def _own(calls: pd.DataFrame) -> Int:
    """Return the own time of each call.

    The table is sorted by thread and start: the call around one is the last before it that is one
    level less deep.
    """
    own = calls["dur_ns"].to_numpy().copy()
    depth = calls["depth"].to_numpy()
    above = np.flatnonzero(depth == 0)
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        around = above[np.searchsorted(above, here) - 1]
        np.subtract.at(own, around, calls["dur_ns"].to_numpy()[here])
        above = here
    result: Int = own.clip(min=0)
    return result


def _is_repeated(calls: pd.DataFrame) -> pd.Series:
    """Tell which calls lie in a call of the same function."""
    keys = [calls[name] for name in [*THREAD, "name"]]
    ends = calls["start_ns"] + calls["dur_ns"]
    latest = ends.groupby(keys, observed=True).cummax()
    before = latest.groupby(keys, observed=True).shift()
    return (calls["start_ns"] < before).fillna(False).astype(bool)
