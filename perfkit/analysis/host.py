"""What does the CPU spend its time on: CUDA calls, named ranges, and waiting for the GPU?

Conventions
-----------
Statistics pool all ranks, processes and threads unless these are among the keys. Runtime and driver
calls stand in one table and a nested call counts in its own row and inside its caller's, as do nested
ranges: totals are inclusive and shares are of the sum of the totals in the table, never of wall time.

Functions
---------
calls               statistics of the CUDA calls per name
spans               statistics of the ranges per domain, name and kind
synchronisations    time each thread is blocked until the GPU is done, per call
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfkit.analysis.calls import where
from perfkit.analysis.statistics import grouped, in_unit, numbered, ranked
from perfkit.analysis.window import Window, cut
from perfkit.analysis.window import spans as extent
from perfkit.tables import API_CALLS, RANGES

SPAN_KEYS = ("domain", "name", "kind", "rank", "process", "thread", "depth")

# Calls that return only when the GPU is done, and why (CUDA Runtime and Driver API references, "API
# synchronization behavior"; HIP follows the same rules). Suffixes _ptsz and _ptds do not matter.
BLOCKING = {
    r"(cuda|hip)(Device|Thread)Synchronize|cuCtxSynchronize": "waits for all work of the device",
    r"(cuda|cu|hip)StreamSynchronize": "waits for all work of a stream",
    r"(cuda|cu|hip)EventSynchronize": "waits for an event",
    r"(cuda|cu|hip)Memcpy(?!.*(Async|Peer)).*": (
        "returns after the copy (host to device up to 64 KB: once staged); peer copies do not wait"
    ),
    r"(cuda|hip)Free(?!.*Async).*|cu(MemFree|MipmappedArrayDestroy|ArrayDestroy)(?!.*Async).*": (
        "waits until no running work can use the memory"
    ),
    r"(cuda|hip)DeviceReset|cuCtxDestroy|cuDevicePrimaryCtxRe(set|lease)": "waits, then destroys the context",
}
_BLOCKING = re.compile("|".join(f"(?:{pattern})" for pattern in BLOCKING))
_VARIANT = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def calls(api_calls: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return count, statistics of the durations and share of the CUDA calls per function.

    Parameters
    ----------
    api_calls
        API_CALLS; may be empty.
    window
        (start_ns, end_ns); everything when omitted.

    Returns
    -------
    pandas.DataFrame
        By falling `total_ns`, ties by falling count, then name: `name` category; `count` int64; `total_ns`,
        `min_ns`, `max_ns` int64; `mean_ns`, `median_ns` float64; `std_ns` float64, of a sample, NaN for one call;
        `share_frac` float64, total_ns over the sum of this table, NaN where that is 0.

    Raises
    ------
    SchemaError
        If `api_calls` is not an API_CALLS table.

    References
    ----------
    The vendor's `cuda_api_sum`.

    Examples
    --------
    >>> calls(API_CALLS.empty()).columns.tolist()[:3]
    ['name', 'count', 'total_ns']
    """
    return _summed(cut(API_CALLS.check(api_calls), window), ["name"])


def spans(
    ranges: pd.DataFrame, *, window: Window | None = None, by: Sequence[str] = ("domain", "name", "kind")
) -> pd.DataFrame:
    """Return count, statistics of the durations and share of the ranges, grouped; marks are left out.

    Parameters
    ----------
    ranges
        RANGES; may be empty.
    window
        (start_ns, end_ns); everything when omitted.
    by
        One or more of domain, name, kind, rank, process, thread, depth.

    Returns
    -------
    pandas.DataFrame
        The key columns as in RANGES, then the columns and order of `calls`.

    Raises
    ------
    SchemaError
        If `ranges` is not a RANGES table.
    ValueError
        If `by` is empty or names another column.

    References
    ----------
    The vendor's `nvtx_sum`, whose Range is "domain:name".

    Examples
    --------
    >>> spans(RANGES.empty()).columns.tolist()[:4]
    ['domain', 'name', 'kind', 'count']
    """
    keys = list(by)
    if not keys or not set(keys) <= set(SPAN_KEYS):
        raise ValueError(f"by: {keys} is not one or more of {list(SPAN_KEYS)}")
    inside = cut(RANGES.check(ranges), window)
    return _summed(inside[inside["kind"] != "mark"], keys)


def _summed(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    names, group = numbered(frame, keys)
    figures = in_unit(grouped(frame["dur_ns"].to_numpy(), group, len(names)), "ns")
    table = pd.concat([names, figures], axis=1)
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    return ranked(table, "total_ns", keys)


def synchronisations(api_calls: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return how long each thread is blocked in calls that wait for the GPU (`BLOCKING`).

    Parameters
    ----------
    api_calls
        API_CALLS; may be empty.
    window
        (start_ns, end_ns); when omitted a thread is seen from its first call's start to its last call's end.

    Returns
    -------
    pandas.DataFrame
        By falling `total_ns`, ties by falling count, then keys: `rank` int32; `process`, `thread` int64; `name`
        category; `count` int64; `total_ns`, `max_ns` int64; `share_frac` float64, 0..1,
        total_ns over the thread's window.

    Raises
    ------
    SchemaError
        If `api_calls` is not an API_CALLS table.

    Examples
    --------
    >>> synchronisations(API_CALLS.empty()).columns.tolist()
    ['rank', 'process', 'thread', 'name', 'count', 'total_ns', 'max_ns', 'share_frac']
    """
    keys = ["rank", "process", "thread", "name"]
    inside = cut(API_CALLS.check(api_calls), window)
    threads, thread = numbered(inside, keys[:3])
    first, last = extent([inside], [thread], len(threads), window)
    blocking = where(inside["name"], lambda name: _BLOCKING.fullmatch(_VARIANT.sub("", name)))
    found = inside[blocking]
    names, group = numbered(found, keys)
    figures = in_unit(grouped(found["dur_ns"].to_numpy(), group, len(names)), "ns")
    table = pd.concat([names, figures[["count", "total_ns", "max_ns"]]], axis=1)
    of_group = np.zeros(len(names), np.int64)
    of_group[group] = thread[blocking]
    table["share_frac"] = table["total_ns"] / np.where(last > first, last - first, np.nan)[of_group]
    return ranked(table, "total_ns", keys)
