"""What was launched, called or asked for, and is not in the recording?"""

from collections.abc import Iterator

import pandas as pd

from perfkit.analysis import completeness
from perfkit.analysis.causes import COPY_CALL, is_launch, where
from perfkit.analysis.ranks import reach
from perfkit.diagnosis.doubt import (
    NOTABLE,
    Doubt,
    Kind,
    is_chosen,
    is_elsewhere,
    of_ranks,
    operations,
    spans,
    touched,
)
from perfkit.format import percent
from perfkit.selection import Selection

TOLD = 0.01  # of the launches: fewer lost ones are not told (convention)


def doubts(view: Selection) -> Iterator[Doubt]:
    """Yield what a recording lacks: kernels, copies, all work of the GPU, calls or operators."""
    yield from _lost_launches(view)
    yield from _lost_copies(view)
    yield from _no_gpu_record(view)
    yield from _lost_calls(view)
    yield from _lost_operators(view)
    yield from _lost_system_calls(view)


def _lost_launches(view: Selection) -> Iterator[Doubt]:
    """Yield that kernels of recorded launches are missing."""
    kernels, copies = operations(view)
    if kernels.empty and copies.empty:
        return
    calls = of_ranks(view, "API_CALLS")
    lost, of_all = completeness.unrecorded(kernels, copies, calls)
    if lost < max(TOLD * of_all, 1):
        return
    launches = completeness.launches(kernels, copies, calls)
    lost = int(launches["lost"].sum())
    lost -= len(view.run.left_out("KERNELS"))  # which another doubt tells
    if lost < max(TOLD * len(launches), 1):
        return
    of = spans(view)
    end_ns = int((of["start_ns"] + of["span_ns"]).max()) if len(of) else 0
    stretches = completeness.free(completeness.between_launches(launches, end_ns), kernels, copies)
    inside, share = touched(view, stretches)
    if is_elsewhere(view, inside):
        return
    place, remedy = _place_of_lost(launches)
    yield Doubt(
        Kind.LOST,
        f"{lost:,} of {len(launches):,} launches have no kernel in the recording{place}",
        lost,
        len(launches),
        "launches",
        "When these kernels ran is unknown, so perfkit judges only the rest",
        remedy,
        share if view.window else max(share, lost / len(launches)),
        share,
        inside,
    )


def _place_of_lost(launches: pd.DataFrame) -> tuple[str, str]:
    """Return where the lost launches are among all, as the end of a sentence, and what to do."""
    lost, kept_ = (launches.loc[rows, "start_ns"] for rows in (launches["lost"], ~launches["lost"]))
    if kept_.empty:
        return "", "Record again: the profiler lost all kernels"
    if lost.max() < kept_.min():
        return ", all at the start", "Let the profiler warm up before the steps that it records"
    if lost.min() > kept_.max():
        return ", all at the end", "Synchronise with the GPU before the recording ends"
    return "", "Record a shorter time: the profiler lost kernels"


def _lost_copies(view: Selection) -> Iterator[Doubt]:
    """Yield that copies of recorded calls are missing, by their share of all operations."""
    kernels, copies = operations(view)
    if is_chosen(view) or (kernels.empty and copies.empty):
        return
    lost, total = completeness.lost_copies(kernels, copies, of_ranks(view, "API_CALLS"))
    lost -= len(view.run.left_out("COPIES"))  # which another doubt tells
    if lost < max(TOLD * total, 1):
        return
    yield Doubt(
        Kind.LOST,
        f"{lost:,} of {total:,} calls that copy have no copy in the recording",
        lost,
        total,
        "calls",
        "When these copies ran is unknown, so perfkit judges only the rest",
        "Record a shorter time: the profiler lost copies",
        lost / (lost + len(kernels) + len(copies)),
    )


def _no_gpu_record(view: Selection) -> Iterator[Doubt]:
    """Yield that work was launched and nothing of the GPU was recorded at all."""
    calls = of_ranks(view, "API_CALLS")
    if calls.empty or len(of_ranks(view, "KERNELS")) or len(of_ranks(view, "COPIES")):
        return
    launched = int(where(calls["name"], completeness.is_single_launch).sum())
    moved = where(calls["name"], COPY_CALL.match)
    is_set = where(calls["name"], completeness.is_memset_call)
    counts = {
        "kernel launches": launched,
        "copies": int((moved & ~is_set).sum()),
        "memsets": int(is_set.sum()),
    }
    told = [
        f"{count:,} {_one(what) if count == 1 else what}" for what, count in counts.items() if count
    ]
    if not told:
        return
    listed = " and ".join(filter(None, (", ".join(told[:-1]), told[-1])))
    total = sum(counts.values())
    yield Doubt(
        Kind.LOST,
        f"The program called {listed}, and the recording holds no work of a GPU",
        total,
        total,
        "launches and copies",
        "The GPU's activity was recorded and lost, so perfkit judges nothing of it",
        _after_total_loss(view),
        1.0,
    )


def _one(plural: str) -> str:
    return {"kernel launches": "kernel launch", "copies": "copy", "memsets": "memset"}[plural]


def _after_total_loss(view: Selection) -> str:
    """Return what to do where a profiler delivered nothing of the GPU."""
    why = (
        "If that does not help, check the permission to profile, run no other profiler "
        "at the same time, and avoid WSL"
    )
    if "framework" in view.run.kinds:
        return f"Call torch.cuda.synchronize() before the profiler stops. {why}"
    return f"Synchronise with the GPU before the recording ends, and use a profiler that supports the driver. {why}"


def _lost_calls(view: Selection) -> Iterator[Doubt]:
    """Yield that the calls of operations are missing, where others have theirs or the operations name them.

    It touches the time in which a GPU waited for these operations.
    """
    work = operations(view)
    missing, total = completeness.without_call(*work, of_ranks(view, "API_CALLS"))
    count = len(missing)
    if not count or count < TOLD * total:
        return
    every = pd.concat([frame[missing.columns] for frame in work], ignore_index=True)
    _, share = touched(view, completeness.waits_before(missing, every))
    yield Doubt(
        Kind.LOST_CALLS,
        f"{count:,} of {total:,} operations of the GPU have no call that launched them",
        count,
        total,
        "operations",
        "The cause of idle time before these operations is unknown",
        "Record CPU and GPU from before the first launch, and a shorter time",
        share,
    )


def _lost_operators(view: Selection) -> Iterator[Doubt]:
    """Yield that operators were recorded in a part of the time in which work was launched."""
    traced = view.framework  # nsys, beside it, records no operators
    operators, calls = of_ranks(traced, "OPS"), of_ranks(traced, "API_CALLS")
    if operators.empty or is_chosen(view):
        return
    launches = calls[where(calls["name"], is_launch)].groupby("rank")["start_ns"]
    launched, seen = launches.agg(["min", "max"]), reach([operators])
    both = launched.join(seen, how="inner")
    lasted = both["max"] - both["min"]
    inside = both[["max", "last"]].min(axis=1) - both[["min", "first"]].max(axis=1)
    outside = lasted - inside.clip(lower=0)
    share = float(outside.sum() / max(lasted.sum(), 1))
    if share < NOTABLE or outside.max() < completeness.BEYOND_NS:
        return
    yield Doubt(
        Kind.LOST_CALLS,
        f"No operator was recorded in {percent(share)} of the time in which the program launched work",
        int((outside > 0).sum()),
        len(both),
        "ranks",
        "Which operators ran then is unknown, so perfkit judges only the others",
        "Record a shorter time: the profiler lost operators",
        share,
    )


def _lost_system_calls(view: Selection) -> Iterator[Doubt]:
    """Yield that calls of the operating system were traced and are missing; a program always makes some."""
    traced = of_ranks(view, "CAPTURE")["traced"].astype(str)
    count = int(traced.str.contains("osrt").sum())
    if not count or is_chosen(view) or len(of_ranks(view, "OS_CALLS")):
        return
    of = spans(view)
    work = operations(view)
    every = of[["rank", "gpu", "start_ns"]].assign(dur_ns=of["span_ns"])
    _, share = touched(view, completeness.free(every, *work))
    yield Doubt(
        Kind.LOST_CALLS,
        "Calls of the operating system were traced, and the recording holds none",
        count,
        len(traced),
        "recordings",
        "Whether the CPU waited for the operating system while the GPU was idle is unknown",
        "Record a shorter time: the profiler lost calls",
        share,
    )
