"""How much is copied between host and devices, how fast, and which copies are slow by their nature?

Conventions
-----------
Durations are those on the GPU, bytes are decimal (1 GB/s = 1e9 bytes/s). A rate is bytes over time of
the copies together (sum over sum, so long copies weigh more), without copies of zero duration. A copy
cut by the window counts with the bytes in proportion to the time inside, to the nearest byte.
Statistics pool all ranks, devices and streams unless these are among the keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfkit.analysis.causes import started_by, where
from perfkit.analysis.grouping import grouped, in_unit, numbered, ranked
from perfkit.analysis.intervals import Int, Window, cut
from perfkit.tables import API_CALLS, COPIES

KEYS = ("direction", "src_memory", "dst_memory", "peer_gpu", "rank", "gpu", "process", "stream")

# Host-to-device copies up to 64 KB return before the data has arrived: they are staged with the command
# (CUDA Runtime API, "API synchronization behavior").
SMALL_BYTES = 65_536

_ASYNC = re.compile(r"cu(?:da)?Mem(?:cpy|set).*Async")


def summary(
    copies: pd.DataFrame,
    *,
    by: Sequence[str] = ("direction", "src_memory", "dst_memory"),
    window: Window | None = None,
) -> pd.DataFrame:
    """Return count, bytes, time and rate of the copies and memsets, grouped by one or more of KEYS (else ValueError).

    Returns
    -------
    pandas.DataFrame
        By falling `total_ns`, ties by falling count, then keys. The key columns as in COPIES; `count`;
        `bytes`, `total_ns` int64; `bytes_per_s` float64, NaN when no copy lasted; of the durations `mean_ns`,
        `median_ns`, `min_ns`, `max_ns`, `std_ns` (of a sample, NaN for one copy); of the sizes likewise `mean_bytes`,
        `median_bytes`, `min_bytes`, `max_bytes`, `std_bytes`.

    References
    ----------
    With by=("direction",) the times are the vendor's `cuda_gpu_mem_time_sum`, the sizes its
    `cuda_gpu_mem_size_sum`.
    """
    keys = list(by)
    if not keys or not set(keys) <= set(KEYS):
        raise ValueError(f"by: {keys} is not one or more of {list(KEYS)}")
    inside = _cut(COPIES.check(copies), window)
    names, group = numbered(inside, keys)
    times = in_unit(grouped(inside["dur_ns"].to_numpy(), group, len(names)), "ns")
    sizes = in_unit(grouped(inside["bytes"].to_numpy(), group, len(names)), "bytes").drop(columns="count")
    head = times[["count"]].assign(bytes=sizes.pop("total_bytes"), total_ns=times["total_ns"])
    lasting = head["bytes"] - _instant(inside, group, len(names))
    head["bytes_per_s"] = lasting / head["total_ns"].where(head["total_ns"] > 0) * 1e9
    return ranked(pd.concat([names, head, times.drop(columns=["count", "total_ns"]), sizes], axis=1), "total_ns", keys)


def _cut(copies: pd.DataFrame, window: Window | None) -> pd.DataFrame:
    """Cut copies at the window, and their bytes in proportion."""
    if window is None:
        return copies
    numbered_rows = copies.set_axis(pd.RangeIndex(len(copies))).assign(row=np.arange(len(copies)))
    inside = cut(numbered_rows, window)
    row = inside.pop("row").to_numpy()
    before, after = copies["dur_ns"].to_numpy()[row], inside["dur_ns"].to_numpy()
    part = np.where(after < before, after / np.maximum(before, 1), 1.0)
    return inside.assign(bytes=np.rint(inside["bytes"].to_numpy() * part).astype(np.int64))


def _instant(copies: pd.DataFrame, group: Int, groups: int) -> pd.Series:
    """Return the bytes of the copies of zero duration in each group."""
    instant = copies["dur_ns"].to_numpy() == 0
    return grouped(copies["bytes"].to_numpy()[instant], group[instant], groups)["total"]


def pageable_async(copies: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return the copies that an asynchronous call started from or to pageable memory.

    Such a copy is staged through pinned memory by the driver and holds the calling thread up: it behaves as a
    synchronous one. (Host-to-device copies of at most 64 KB return early all the same; `bytes` tells them.)

    Returns
    -------
    pandas.DataFrame
        In the order of COPIES: `rank`, `gpu`, `start_ns`, `dur_ns`, `bytes`, `direction` and `api`
        (category, the call). Copies whose call was not recorded are left out.

    References
    ----------
    The vendor's rule `cuda_memcpy_async`; it joins without the process and leaves driver calls out.
    """
    pageable = (COPIES.check(copies)["src_memory"] == "pageable") | (copies["dst_memory"] == "pageable")
    table = copies.loc[pageable, ["rank", "gpu", "start_ns", "dur_ns", "bytes", "direction"]]
    call = started_by(copies[pageable], API_CALLS.check(api_calls))
    table, call = table[call >= 0], call[call >= 0]
    table["api"] = api_calls["name"].iloc[call].array
    return table[where(table["api"], lambda name: _ASYNC.match(name))].reset_index(drop=True)


def small_copies(
    copies: pd.DataFrame, *, at_most_bytes: int = SMALL_BYTES, window: Window | None = None
) -> pd.DataFrame:
    """Return how many copies of each direction move at most `at_most_bytes` (0 or more); memsets are not copies.

    A copy that the window cuts counts by its whole size.

    Returns
    -------
    pandas.DataFrame
        One row per direction that occurs, by falling `total_ns`: `direction`; `count`, `bytes`, `total_ns` of the small
        copies; `count_frac`, count over all copies of that direction.
    """
    if at_most_bytes < 0:
        raise ValueError(f"at_most_bytes: {at_most_bytes} is not 0 or more")
    inside = cut(COPIES.check(copies), window)
    inside = inside[inside["direction"] != "memset"]
    table, group = numbered(inside, ["direction"])
    small = inside["bytes"].to_numpy() <= at_most_bytes
    for name, column in (("bytes", "bytes"), ("total_ns", "dur_ns")):
        figures = grouped(inside[column].to_numpy()[small], group[small], len(table))
        table["count"], table[name] = figures["count"], figures["total"]
    table["count_frac"] = table["count"] / np.bincount(group, minlength=len(table))
    return ranked(table, "total_ns", ["direction"])
