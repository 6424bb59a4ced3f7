"""Where did the wall time of a call-path profile go?

The ledger books the wall time of each GPU in lines: its kernels, its copies, its other operations,
and the rest by the call path of the main thread. Kernels count first, as in the ledger of a
timeline: what a copy does beside a kernel is no time of its own. A profile of call paths holds no
times of day. So the paths of the CPU are spread over the rest in proportion to their CPU time, and
what is left is time in which the main thread did not run. Where CPU time was not recorded, the rest
is one line with that cause.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.calltree import totals
from perfkit.analysis.intervals import Float, Int
from perfkit.analysis.ledger import LEDGER
from perfkit.tables import CALLTREE

MAIN = "main thread"
# Causes of idle time: what the CPU did is known, it did nothing, or nobody recorded it.
CODE, NOT_RUNNING, NOT_RECORDED = "host_code", "not_running", "cpu_not_recorded"
OTHER_PATHS = "other paths"
MOST_PATHS, LEAST_PATH = (
    5,
    0.05,
)  # paths of the CPU in a ledger; a smaller share is one of OTHER_PATHS (conventions)


class Work(NamedTuple):
    """The time of a rank's GPUs, ns: wall time x GPUs, in all busy, and the sums of kernels and copies."""

    wall: float
    busy: float
    kernels: float
    copies: float


def ledger(works: dict[int, Work], paths: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of each rank, LEDGER of `analysis.ledger`; those of a rank add up to its wall time x GPUs.

    `works`: by rank; `paths`: as from `branches`, with `frac` of the wall time; none of a rank
    without CPU time. All GPUs of a rank are one, GPU 0, and the phase is always "whole".
    """
    rows: list[tuple[object, ...]] = []
    for rank, work in works.items():
        own = paths[paths["rank"] == rank]
        rows += [(rank, 0, "whole", *line) for line in _lines(work, own)]
    columns = ["rank", "gpu", "phase", "kind", "cause", "owner", "ns"]
    return LEDGER.make(pd.DataFrame(rows, columns=columns))


def _lines(work: Work, paths: pd.DataFrame) -> list[tuple[str, str, str | None, int]]:
    """Return kind, cause, owner and ns of each line of a rank that takes time."""
    kernels = min(work.kernels, work.busy)
    copies = min(work.copies, work.busy - kernels)
    lines: list[tuple[str, str, str | None, int]] = [
        ("computation", "kernel", None, round(kernels)),
        ("copy", "copy", None, round(copies)),
        ("computation", "memset", None, round(work.busy - kernels - copies)),
    ]
    rest = round(work.wall) - sum(line[-1] for line in lines)
    if paths.empty:
        lines.append(("idle", NOT_RECORDED, None, rest))
        return [line for line in lines if line[-1] > 0]
    scale = 1 / max(float(paths["frac"].sum()), 1.0)
    for name, frac in zip(paths["name"].astype(str), paths["frac"].astype(float), strict=True):
        lines.append(("idle", CODE, name, int(rest * frac * scale)))
    lines.append(("idle", NOT_RUNNING, None, round(work.wall) - sum(line[-1] for line in lines)))
    return [line for line in lines if line[-1] > 0]


def branches(calltree: pd.DataFrame, call_metrics: pd.DataFrame, *, metric: str) -> pd.DataFrame:
    """Return the parts of the main thread's time of a metric, where its call path divides.

    From the root of the main thread on, the part with most of the time is divided into the parts of
    its callees, until there are MOST_PATHS. What is too small for a part of its own is one of
    OTHER_PATHS. Columns rank, name (of the line or function), value (in the metric's unit), the
    largest part of a rank first.
    """
    values = totals.measured(calltree, call_metrics, metric)
    value = np.zeros(len(calltree))
    value[values.row] = np.nan_to_num(values.inclusive)
    children = _children(totals.parents(calltree))
    roots = (
        CALLTREE.check(calltree)["entry"].eq(MAIN).to_numpy() & calltree["parent"].isna().to_numpy()
    )
    rows = []
    for root in np.flatnonzero(roots & (value > 0)):
        rank = int(calltree["rank"].iloc[root])
        for part, amount in _divided(int(root), value, children).items():
            is_named = part >= 0 and part != root
            text = totals.called(str(calltree["name"].iloc[part])) if is_named else OTHER_PATHS
            rows.append((rank, text, amount))
    table = pd.DataFrame(rows, columns=["rank", "name", "value"])
    summed: pd.DataFrame = table.groupby(["rank", "name"])["value"].sum().reset_index()
    return summed.sort_values(
        ["rank", "value"], ascending=[True, False], kind="stable", ignore_index=True
    )


def _children(parent: Int) -> dict[int, list[int]]:
    """Return the rows of the callees of each context."""
    children: dict[int, list[int]] = {}
    for row, above in enumerate(parent.tolist()):
        children.setdefault(above, []).append(row)
    return children


def _divided(root: int, value: Float, children: dict[int, list[int]]) -> dict[int, float]:
    """Return the value of each part below a root, by row; -1 stands for all that is small."""
    least = LEAST_PATH * value[root]
    open_parts = [root]
    amounts: dict[int, float] = {}
    small = 0.0
    while open_parts and len(open_parts) + len(amounts) < MOST_PATHS:
        open_parts.sort(key=lambda row: value[row])
        largest = open_parts.pop()
        below = [row for row in children.get(largest, []) if value[row] >= least]
        own = float(value[largest] - sum(value[row] for row in below))
        if own >= least:
            amounts[largest] = own
        else:
            small += own
        open_parts += below
    amounts |= {row: float(value[row]) for row in open_parts}
    return amounts | ({-1: small} if small > 0 else {})
