"""Why do the warps of a kernel wait instead of issuing instructions?

Conventions
-----------
A stall reason's value is a number of samples, or the cycles a warp spent on it per issued instruction; a
table holds one form per launch. Either way a reason's share is its part of the sum over the reasons of
its launch (or call-tree node). `selected` is the cycle in which the warp did issue: it counts in the
sum, as in the vendor's warp latency, but is no stall and gets no place. Totals such as `stl_any`, which are the sum
of the others, are left out. Waiting warps cost nothing while another one can issue.

Reasons are those of Nsight Compute (`smsp__average_warps_issue_stalled_<reason>_...`, sampled
`smsp__pcsamp_warps_issue_stalled_<reason>`) and of HPCToolkit's instruction samples (`stl_<reason>`). `words` says what
each means to a person and what usually helps, TOTALS are the sums of others, ISSUING those that are no stall.

References
----------
Nsight Compute, Kernel Profiling Guide, "Warp Stall Reasons"; HPCToolkit, descriptions of GINS:STL_* and
GCYCLES:STL:* in the metrics/default.yaml of a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.errors import PerfkitError
from perfkit.tables import STALLS


class Words(NamedTuple):
    """A sentence that says what the warps wait for, and one that says what usually helps."""

    means: str
    helps: str


TOTALS = frozenset({"any", "stl_any", "stl", "gins", "gcycles", "sample_count", "samples", "total"})
ISSUING = frozenset({"selected", "stl_none", "none", "hid", "stl_hid"})
_NCU = {
    "long_scoreboard": Words(
        "Warps wait for data from global, local or texture memory.",
        "Read less and in order (coalesced), keep reused data in shared memory or registers, load earlier, "
        "or have more warps resident to wait in turn.",
    ),
    "short_scoreboard": Words(
        "Warps wait for shared memory or for the special-function unit (sin, exp, division).",
        "Remove bank conflicts, use fewer and wider shared-memory accesses, or cheaper math functions.",
    ),
    "mio_throttle": Words(
        "The queue to shared memory and special functions is full.",
        "Make fewer shared-memory and special-function instructions: wider loads, values kept in registers.",
    ),
    "lg_throttle": Words(
        "The queue to global and local memory is full.",
        "Combine narrow loads into wide ones (float4), and look for spilled registers, which use local memory.",
    ),
    "tex_throttle": Words(
        "The queue to the texture unit is full.",
        "Make fewer texture instructions, or read part of the data through ordinary loads.",
    ),
    "math_pipe_throttle": Words(
        "Warps wait for an arithmetic unit that others are using: the unit is busy.",
        "Good news in a compute-bound kernel; to go faster use tensor cores, a lower precision or fewer operations.",
    ),
    "wait": Words(
        "Warps wait the fixed number of cycles that every instruction needs before the next.",
        "Normal; where it leads, give the scheduler more warps or independent instructions (unroll loops).",
    ),
    "not_selected": Words(
        "Warps were ready, but the scheduler chose another one.",
        "Nothing is wrong: there are warps enough, and fewer of them could have more registers each.",
    ),
    "selected": Words(
        "Warps issued an instruction: this is work, not waiting.",
        "Nothing to do.",
    ),
    "barrier": Words(
        "Warps wait for others of their block at __syncthreads().",
        "Balance the work between the warps of a block, use smaller blocks, or synchronise less often.",
    ),
    "branch_resolving": Words(
        "Warps wait until the target of a branch is known.",
        "Use fewer jumps: unroll short loops, replace small branches by predicated arithmetic.",
    ),
    "dispatch_stall": Words(
        "The dispatcher held an instruction back although the warp was ready.",
        "Seldom the cause of anything; look at the next reason.",
    ),
    "drain": Words(
        "Finished warps wait until their last stores have left for memory.",
        "Store coalesced and less at the very end of the kernel.",
    ),
    "imc_miss": Words(
        "Warps wait for a constant that is not in the constant cache.",
        "Index constants alike in all threads of a warp, and keep the constant data small.",
    ),
    "membar": Words(
        "Warps wait at a memory fence (__threadfence) until their writes are visible.",
        "Use fewer fences, or a narrower scope (block instead of device).",
    ),
    "no_instruction": Words(
        "Warps wait for their next instructions: a miss in the instruction cache, or a jump.",
        "Unroll less so that loops fit the instruction cache, and avoid very short kernels and far jumps.",
    ),
    "sleeping": Words(
        "All threads of the warp sleep (__nanosleep), as in a waiting loop.",
        "Sleep for less, or let fewer warps poll.",
    ),
    "gmma": Words(
        "Warps wait for asynchronous tensor-core operations (wgmma) to finish.",
        "Normal where tensor cores are busy; else keep more of these operations in flight.",
    ),
    "warpgroup_arrive": Words(
        "Warps wait for the others of their warp group before a tensor-core operation.",
        "Balance the work of the four warps of a group.",
    ),
    "misc": Words(
        "A reason the hardware does not name.",
        "Look at the next reason.",
    ),
}
_HPCTOOLKIT = {
    "ifet": _NCU["no_instruction"],
    "idep": Words(
        "Warps wait for the result of an earlier instruction.",
        "Give the scheduler independent instructions (unroll loops) or more warps.",
    ),
    "gmem": Words("Warps wait for data from global memory.", _NCU["long_scoreboard"].helps),
    "mem": Words("Warps wait for data from some kind of memory.", _NCU["long_scoreboard"].helps),
    "tmem": _NCU["tex_throttle"],
    "cmem": _NCU["imc_miss"],
    "sync": Words(
        "Warps wait for other threads at a barrier, or for memory to be synchronised.", _NCU["barrier"].helps
    ),
    "pipe": _NCU["math_pipe_throttle"],
    "mthr": _NCU["lg_throttle"],
    "nsel": _NCU["not_selected"],
    "slp": _NCU["sleeping"],
    "othr": _NCU["misc"],
    "hid": Words("The wait cost nothing: other warps issued meanwhile.", "Nothing to do."),
    "inv": Words("The hardware gave a reason that is not valid.", "Look at the next reason."),
}
words: Mapping[str, Words] = {
    **_NCU,
    "no_instructions": _NCU["no_instruction"],  # the sampled form's spelling
    **{f"{prefix}{reason}": said for reason, said in _HPCTOOLKIT.items() for prefix in ("", "stl_")},
}
KEYS: Mapping[str, list[str]] = {"launch": ["rank", "launch"], "node": ["rank", "node"]}


def shares(stalls: pd.DataFrame, *, by: str = "launch") -> pd.DataFrame:
    """Return each stall reason's share of the waiting of its launch (or call-tree node: `by` "node"), largest first.

    share = value / sum of the values of the launch, totals left out.

    Returns
    -------
    pandas.DataFrame
        By rank and launch (node), then falling value, ties by reason. `rank`, `launch` or `node` int64,
        `reason` category, `value` float64 as in STALLS, `share_frac`, NaN where the sum is 0
        or the value is missing, `place` Int64, 1 for the largest stall, NA for what is no stall (`selected`).

    Raises
    ------
    ValueError
        If `by` is neither.
    PerfkitError
        If a value is negative.

    References
    ----------
    Nsight Compute, Kernel Profiling Guide, "Warp Stall Reasons" and section WarpStateStats.
    """
    if by not in KEYS:
        raise ValueError(f"by: {by!r} is not one of {list(KEYS)}")
    STALLS.check(stalls)
    wanted = (stalls[by].to_numpy() >= 0) & ~_among(stalls["reason"], TOTALS)
    frame = stalls.loc[wanted, [*KEYS[by], "reason", "value"]].reset_index(drop=True)
    value = frame["value"].to_numpy()
    if (value < 0).any():
        raise PerfkitError(f"stalls: a value is {np.nanmin(value):g}, below 0. Record the counters again.")
    group = _groups(frame, KEYS[by])
    total = np.bincount(group, np.nan_to_num(value))
    frame["share_frac"] = value / np.where(total > 0, total, np.nan)[group]
    # STALLS is sorted by reason within a launch, and the sort is stable: ties stay in that order.
    order = np.lexsort([-value, group])
    frame = frame.take(order).reset_index(drop=True)
    return frame.assign(place=_place(frame, group))


def _groups(frame: pd.DataFrame, keys: list[str]) -> Int:
    """Number the launches (nodes), whose rows stand together in STALLS."""
    new = np.zeros(len(frame), bool)
    for key in keys:
        new[1:] |= np.diff(frame[key].to_numpy()) != 0
    return np.cumsum(new)


def _place(frame: pd.DataFrame, group: Int) -> pd.Series:
    """Number the stalls of each group from 1, what issued and what was not measured left out."""
    stalled = frame["value"].notna().to_numpy() & ~_among(frame["reason"], ISSUING)
    count = np.cumsum(stalled)
    first = np.searchsorted(group, np.arange(group.max(initial=-1) + 1))
    place: Int = count - (count - stalled)[first][group]
    return pd.Series(pd.arrays.IntegerArray(place.astype(np.int64), ~stalled))


def _among(reason: pd.Series, names: frozenset[str]) -> NDArray[np.bool_]:
    """Whether each reason is one of `names`, which are lower case; a tool's prefix up to a colon does not count."""
    among = [str(category).lower().rpartition(":")[2] in names for category in reason.cat.categories]
    return np.array([*among, False])[reason.cat.codes.to_numpy()]


def main(stalls: pd.DataFrame, *, by: str = "launch") -> pd.DataFrame:
    """Return the largest stall above 0 of each launch or call-tree node, with what it means.

    The columns are those of `shares` without place, and the strings `means` and `helps`, empty for a reason that
    `words` does not know.
    """
    ranked = shares(stalls, by=by)
    largest = ranked[ranked["place"].eq(1).fillna(False).astype(bool) & ranked["value"].gt(0)].drop(columns="place")
    texts = [words.get(reason, Words("", "")) for reason in largest["reason"].astype(str)]
    return largest.assign(
        means=pd.array([text.means for text in texts], dtype="string"),
        helps=pd.array([text.helps for text in texts], dtype="string"),
    ).reset_index(drop=True)
