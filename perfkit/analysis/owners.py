"""Who kept a GPU idle? Each nanosecond of idle time has exactly one owner.

The thread that launches the operation at the end of a gap decides; of a gap whose launch is not
known it is the thread that launches most for this GPU. Moment by moment, the first of these that
holds owns the time:

    collector    the profiler's own time: kinds profiler and flush of OVERHEAD, on any thread of the process
    overhead     what CUDA or the loader did for themselves: loading, compiling, a full queue; no launch of the program
    cuda_call    inside a CUDA call, or after the launch call returned, until the kernel starts (at most 30 us)
    os_call      inside a recorded call of the operating system; `caller` is who asked for it, by the call's stack
    range        in a range for data loading or of MPI
    not_running  the operating system had taken the thread off its core: whoever ran there instead, where recorded
    function     the Python function of a trace, or the function that samples of the thread name (`analysis.stacks`)
    range        the innermost range over at least half of the gap
    unknown      none of these is recorded

Samples describe what ran on a core, never a wait: so they come after the calls and the schedule.
All samples in the gaps of a GPU and thread are judged together; a gap with at least FEWEST of its
own is judged by these where fewer than half of them hold the common function. A function that fewer
than FEWEST samples name is not certain.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfkit.analysis.causes import THREAD, on_one_axis
from perfkit.analysis.gaps import GAPS
from perfkit.analysis.intervals import Bool, union
from perfkit.analysis.owner_evidence import FEWEST, Evidence, deciding_threads
from perfkit.analysis.stacks import Frames, shown
from perfkit.schema import Column, Table
from perfkit.tables import (
    API_CALLS,
    DUR,
    FRAMES,
    GPU,
    OS_CALLS,
    OVERHEAD,
    PYTHON_CALLS,
    RANGES,
    RANK,
    SCHEDULE,
    STACKS,
    START,
)

__all__ = ["FEWEST", "OWNED", "elsewhere", "in_words", "owned", "samples_in", "summary"]
OWNED = Table(
    "OWNED",
    "a stretch of idle time with one owner",
    (
        *(RANK, GPU, START, DUR),
        Column("gap", "int64", "row of the gap in GAPS"),
        Column("cause", "category", "one of CAUSES"),
        Column("detail", "category", "one of DETAILS; missing unless the cause is host_wait"),
        Column(
            "owner_kind",
            "category",
            "collector, overhead, cuda_call, os_call, range, not_running, function, unknown",
        ),
        Column("owner", "category", "name of the owner; missing where it has none"),
        Column(
            "caller",
            "category",
            "function that asked for the call; missing where no stack names one",
        ),
        Column(
            "samples",
            "int64",
            "samples of the thread in the stretch that name the owner, count",
            least=0,
        ),
        Column("of_samples", "int64", "samples of the thread in the stretch, count", least=0),
        Column(
            "certain", "bool", "whether the owner is more than a guess from fewer than five samples"
        ),
    ),
    ("rank", "gpu", "start_ns"),
)


def owned(
    gaps: pd.DataFrame,
    *,
    api_calls: pd.DataFrame,
    ranges: pd.DataFrame | None = None,
    os_calls: pd.DataFrame | None = None,
    stacks: pd.DataFrame | None = None,
    frames: pd.DataFrame | None = None,
    schedule: pd.DataFrame | None = None,
    overhead: pd.DataFrame | None = None,
    python_calls: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return the owner of each moment of idle time: table `OWNED`.

    `gaps`: GAPS of the same tables. The stretches of a gap add up to it exactly, and those of a
    cause or detail to that part of the gap. Tables that are omitted, or empty, name no owner.
    """
    given = {
        "ranges": RANGES.given(ranges),
        "os_calls": OS_CALLS.given(os_calls),
        "stacks": STACKS.given(stacks),
        "schedule": SCHEDULE.given(schedule),
        "overhead": OVERHEAD.given(overhead),
        "python_calls": PYTHON_CALLS.given(python_calls),
    }
    GAPS.check(gaps)
    API_CALLS.check(api_calls)
    if not len(gaps):
        return OWNED.empty()
    return Evidence(gaps, api_calls, Frames(FRAMES.given(frames)), **given).table()


def samples_in(gaps: pd.DataFrame, api_calls: pd.DataFrame, stacks: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of STACKS that are samples of the threads that decide the gaps, taken inside of these."""
    samples = STACKS.check(stacks)[stacks["kind"].eq("sample").to_numpy()]
    deciding = gaps[["rank", "start_ns", "dur_ns"]].assign(**deciding_threads(gaps, api_calls))
    return samples[_inside(deciding, samples, THREAD)]


def _inside(gaps: pd.DataFrame, samples: pd.DataFrame, keys: Sequence[str]) -> Bool:
    """Tell which samples were taken in a gap of the same keys."""
    (start, end), (moment, _) = on_one_axis([gaps, samples.assign(dur_ns=0)], keys)
    idle = union(start, end)
    place = np.searchsorted(idle.start, moment, side="right") - 1
    return (place >= 0) & (np.append(idle.end, 0)[place] > moment)


def elsewhere(gaps: pd.DataFrame, stacks: pd.DataFrame) -> pd.DataFrame:
    """Return which other threads ran while a GPU was idle: they may be what the launching thread waits for.

    One row per rank, process and thread with samples in any of the gaps, but not of the threads
    that decide these: samples, count; by falling count within a rank.
    """
    samples = STACKS.check(stacks)[stacks["kind"].eq("sample").to_numpy()]
    inside = _inside(GAPS.check(gaps), samples, ["rank"])
    counts = samples[inside].groupby(THREAD).size().rename("samples").reset_index()
    deciding = gaps[THREAD].drop_duplicates().assign(decides=True)
    counts = counts.merge(deciding, on=THREAD, how="left")
    counts = counts[counts["decides"].isna()].drop(columns="decides")
    return counts.sort_values(
        ["rank", "samples"], ascending=[True, False], kind="stable", ignore_index=True
    )


WORDS = {
    "collector": "profiler: {owner}",
    "overhead": "{owner}",
    "cuda_call": "{owner}",
    "os_call": "{owner}",
    "range": "range {owner}",
    "not_running": "not running",
    "function": "{owner}",
    "unknown": "not recorded",
}


def in_words(owned: pd.DataFrame) -> pd.Series:
    """Return the owner of most of each gap as text, by the gap's row in GAPS."""
    keys = ["gap", "owner_kind", "owner", "caller", "certain"]
    parts = owned.groupby(keys, observed=True, dropna=False)["dur_ns"].sum().reset_index()
    most = parts.sort_values("dur_ns", kind="stable").drop_duplicates("gap", keep="last")
    most = most.sort_values("gap", kind="stable")
    texts = [_in_words(*row) for row in most[keys[1:]].itertuples(index=False)]
    return pd.Series(texts, most["gap"].to_numpy(), dtype="string")


def _in_words(kind: str, owner: object, caller: object, certain: bool) -> str:
    """Return an owner as text.

    >>> _in_words("os_call", "pwrite64", "H5Dwrite", True)
    'pwrite64, called by H5Dwrite'
    """
    text = WORDS[kind].format(owner=shown(str(owner)))
    if kind == "not_running" and isinstance(owner, str):
        text += f" ({owner} ran instead)"
    if isinstance(caller, str):
        text += f", called by {shown(caller)}"
    return text if certain else f"perhaps {text}"


def summary(owned: pd.DataFrame) -> pd.DataFrame:
    """Return the idle time of each GPU by owner, the largest first within a GPU.

    One row per rank, gpu, owner_kind, owner and caller: total_ns, share_frac (of the GPU's idle
    time), samples and of_samples (sums), certain (whether all of it is).
    """
    keys = ["rank", "gpu", "owner_kind", "owner", "caller"]
    groups = OWNED.check(owned).groupby(keys, observed=True, dropna=False)
    table = groups.agg(
        total_ns=("dur_ns", "sum"),
        samples=("samples", "sum"),
        of_samples=("of_samples", "sum"),
        certain=("certain", "all"),
    ).reset_index()
    idle = table.groupby(["rank", "gpu"])["total_ns"].transform("sum")
    table = table.assign(share_frac=table["total_ns"] / idle)
    return table.sort_values(
        ["rank", "gpu", "total_ns"], ascending=[True, True, False], ignore_index=True
    )
