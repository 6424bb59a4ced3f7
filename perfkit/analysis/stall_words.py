"""What does each stall reason mean to a person, and what usually helps?

Conventions
-----------
Reasons are those of Nsight Compute (`smsp__average_warps_issue_stalled_<reason>_...`, sampled
`smsp__pcsamp_warps_issue_stalled_<reason>`) and of HPCToolkit's instruction samples (`stl_<reason>`).

Data
----
words      reason -> Words
TOTALS     reasons that are the sum of the others
ISSUING    reasons that are no stall: the warp issued, or others did while it waited

References
----------
Nsight Compute, Kernel Profiling Guide, "Warp Stall Reasons"; HPCToolkit, descriptions of GINS:STL_* and
GCYCLES:STL:* in the metrics/default.yaml of a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


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
