"""Which calls load kernels into the GPU, or start libraries, and how long does the GPU wait for them?

The first launch of a kernel in a process loads the kernel into the GPU (lazy loading), and may compile it. It is paid
once, however long the run lasts, so no rule counts it as a gain, and no replay takes it away. A first launch counts if
its call lasts FIRST_TIMES as long as the median of the later launches, and 0.1 ms at least (conventions): in recordings
of A100 and H100 such calls last 0.2 to 700 ms, and others 3 to 20 µs. Calls that load modules always count.
"""

import re

import numpy as np
import pandas as pd

from perfkit.analysis.causes import (
    MEMORY_CALL,
    THREAD,
    is_kernel_launch,
    numbered_together,
    started_by,
    where,
)
from perfkit.analysis.intervals import ends, intersect, union
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import busy, idle_gaps
from perfkit.selection import Selection

FIRST_TIMES = 10
FIRST_NS = 100_000


ASKS_DRIVER = re.compile(r"cuInit|cuGetProcAddress|hipInit|hipGetProcAddress")


# Of one launch an export may hold two calls, one inside the other.
LAUNCH = ["rank", "process", "correlation"]


def first_launches(kernels: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return the launch calls that load their kernel: `row` (position) and LAUNCH of API_CALLS, and `usual_ns`.

    `usual_ns` is the median length of the later launches; where there are none a call that loads lasts 1 ms at least.
    """
    call = started_by(kernels, api_calls)
    launched = kernels.loc[call >= 0, ["rank", "full_name", "correlation"]].reset_index(drop=True)
    row = call[call >= 0]
    calls = api_calls[["process", "start_ns", "dur_ns"]].take(row).reset_index(drop=True)
    in_order = pd.concat([launched, calls], axis=1).assign(row=row)
    in_order = in_order.sort_values("start_ns", kind="stable")
    is_later = in_order.duplicated(["rank", "process", "full_name"])
    lasted = in_order["dur_ns"]
    usual = float(lasted[is_later].median()) if is_later.any() else FIRST_NS
    loads = ~is_later & (lasted >= max(FIRST_TIMES * usual, FIRST_NS))
    slow = in_order[loads].drop_duplicates("row")
    return slow[["row", *LAUNCH]].assign(usual_ns=usual)


@kept
def loading(view: Selection) -> pd.DataFrame:
    """Return `first_launches` of a selection, whatever its window: what ran before it is loaded."""
    return first_launches(view.all_kernels, view.api_calls)


def loaded_before(
    first: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame
) -> pd.DataFrame:
    """Return API_CALLS in which loading kernels is work of the CPU before the call: no change of calls removes it.

    `first`: the calls that load, of `first_launches` of the whole run; KERNELS and API_CALLS may be a part of it.
    """
    of_first, call = numbered_together([first, api_calls], LAUNCH)
    row = np.flatnonzero(np.isin(call, of_first))
    if not len(row):
        return api_calls
    start, length = (api_calls[name].to_numpy(copy=True) for name in ("start_ns", "dur_ns"))
    begun = (
        kernels.groupby(LAUNCH)["start_ns"]
        .min()
        .reindex(pd.MultiIndex.from_frame(api_calls[LAUNCH].iloc[row]))
    )
    until = (
        begun.fillna(np.inf).to_numpy() - start[row]
    )  # the kernel of a call at the edge may lie outside
    extra = np.minimum(length[row] - int(first["usual_ns"].iloc[0]), until).astype(np.int64)
    start[row] += extra.clip(min=0)
    length[row] -= extra.clip(min=0)
    moved = api_calls.assign(start_ns=start, dur_ns=length)
    return moved.sort_values([*THREAD, "start_ns"], kind="stable", ignore_index=True)


@kept
def start_up(view: Selection) -> tuple[dict[str, float], pd.DataFrame]:
    """Return the share of the span in which the GPU is idle while kernels load, by cause, and the calls that load them.

    Causes are launch (first launches), cuda_call (calls that load modules) and memory (calls of a library that starts),
    as far as their thread was waited for.
    """
    gaps, span, calls = idle_gaps(view), int(busy(view)["span_ns"].sum()), view.api_calls
    if gaps is None or not span:
        return {}, calls.head(0)
    first = calls.iloc[loading(view)["row"]]
    loads = calls[
        where(calls["name"], re.compile(r"(?:cu|hip|cuda)(?:Module|Library)(?:Load|Get)").match)
    ]
    set_up = library_calls(calls)
    shares = {"launch": 0.0, "cuda_call": 0.0, "memory": 0.0}
    for cause, found in (("launch", first), ("cuda_call", loads), ("memory", set_up)):
        for _, waits in gaps[gaps[f"{cause}_ns"] > 0].groupby(
            "gpu"
        ):  # a thread may launch on several
            of_thread = zip((waits, found), numbered_together([waits, found], THREAD), strict=True)
            both = intersect(*(union(*ends(frame), number) for frame, number in of_thread))
            shares[cause] += (
                min(int((both.end - both.start).sum()), int(waits[f"{cause}_ns"].sum())) / span
            )
    return shares, pd.concat([first, loads, set_up])


def library_calls(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the API_CALLS that allocate or free memory while a library starts.

    A library that starts asks for the driver's functions (cuInit, cuGetProcAddress); until the thread launches its next
    kernel, such calls make contexts and handles.
    """
    names = calls["name"]
    in_order = calls.sort_values([*THREAD, "start_ns"], kind="stable")
    marks = [where(names, ASKS_DRIVER.match), where(names, is_kernel_launch)]
    mark = pd.Series(np.select(marks, [1.0, 0.0], np.nan), calls.index)[in_order.index]
    starts = mark.groupby([in_order[key] for key in THREAD]).ffill().eq(1)
    found: pd.DataFrame = calls[where(names, MEMORY_CALL.match) & starts.reindex(calls.index)]
    return found
