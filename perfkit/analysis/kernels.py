"""Which kernels take the time: launches, durations and share of each kernel name, family or launch grid?

Conventions
-----------
All devices, streams and processes are pooled: a median is the median of every launch. Durations of
concurrent kernels add up, so shares are of the sum of durations in the table, never of wall time;
`gpu_busy_frac` counts a moment once per device however many kernels of the group run in it. Kernels cut
by the window count with the part inside.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.grouping import grouped, in_unit, numbered, ranked
from perfkit.analysis.intervals import Int, total, union
from perfkit.analysis.window import Window, cut, devices, spans
from perfkit.tables import KERNELS

KEYS = {
    "name": ["name"],
    "full_name": ["full_name"],
    "family": ["family"],
    "grid": ["full_name", "grid_blocks", "block_threads"],
}


def summary(kernels: pd.DataFrame, *, by: str = "name", window: Window | None = None) -> pd.DataFrame:
    """Return count, statistics of the durations, share and busy fraction of the kernels, grouped.

    `by` is "name", "full_name", "family", or "grid": full name, blocks in the grid and threads in a block; else
    ValueError.

    Returns
    -------
    pandas.DataFrame
        By falling `total_ns`, ties by falling count, then name. The key columns as in KERNELS; `family`,
        missing where kernels of several families share a name; `count`, `total_ns`, `mean_ns`, `median_ns`, `min_ns`,
        `max_ns`, `std_ns` (of a sample, NaN for one launch); `share_frac`,
        total_ns over the sum of this table; `gpu_busy_frac`, time in which a kernel
        of the group runs over the length of the window (without one, first kernel's start to last kernel's end),
        both summed over the devices that ran any kernel.

    References
    ----------
    Grouping by full name is that of the vendor's `cuda_gpu_kern_sum`, by grid that of `cuda_gpu_kern_gb_sum`
    (2022: `gpukernsum`), which also tells grids of as many blocks apart by their shape.
    """
    if by not in KEYS:
        raise ValueError(f"by: {by!r} is not one of {list(KEYS)}")
    inside = cut(KERNELS.check(kernels), window)
    names, group = numbered(inside, KEYS[by])
    if by != "family":
        names["family"] = _family(inside["family"], group, len(names))
    figures = in_unit(grouped(inside["dur_ns"].to_numpy(), group, len(names)), "ns")
    table = pd.concat([names, figures], axis=1)
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    table["gpu_busy_frac"] = _busy(inside, group, table["total_ns"].to_numpy(), window)
    return ranked(table, "total_ns", KEYS[by])


def _family(family: pd.Series, group: Int, groups: int) -> pd.Series:
    """Return the family of each group, missing where its kernels belong to several."""
    code = np.asarray(family.cat.codes)
    row = np.zeros(groups, np.int64)
    row[group] = np.arange(len(group))
    several = np.zeros(groups, bool)
    several[group[code != code[row][group]]] = True
    return family.iloc[row].reset_index(drop=True).mask(several)


def _busy(kernels: pd.DataFrame, group: Int, total_ns: Int, window: Window | None) -> pd.Series:
    """Return the time each group runs over the length of the window, both summed over the devices."""
    index, (device,) = devices(kernels)
    begin, end = spans([kernels], [device], len(index), window)
    start = kernels["start_ns"].to_numpy()
    stop = start + kernels["dur_ns"].to_numpy()
    step = np.diff(device)
    if ((step > 0) | ((step == 0) & (start[1:] >= stop[:-1]))).all():
        busy = total_ns  # no kernel runs beside another
    else:
        busy = _covered(start, stop, device * len(total_ns) + group, (len(index), len(total_ns)))
    return pd.Series(busy / (int((end - begin).sum()) or np.nan))


def _covered(start: Int, stop: Int, place: Int, shape: tuple[int, int]) -> Int:
    """Return the length of the union of each group's intervals, summed over the devices; shape: devices, groups."""
    # The table is sorted by device and start: a stable sort by place alone gives the order that union wants.
    small = place.astype(np.uint16) if shape[0] * shape[1] <= 1 << 16 else place
    order = np.argsort(small, kind="stable")
    covered = union(start[order], stop[order], place[order])
    return np.asarray(total(covered, shape[0] * shape[1]).reshape(shape).sum(axis=0), np.int64)
