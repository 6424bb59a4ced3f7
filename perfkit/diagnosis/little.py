"""Does the recording hold enough work of the GPU to judge a program by?"""

from collections.abc import Iterator

import pandas as pd

from perfkit.analysis import timeline
from perfkit.diagnosis.doubt import Doubt, Kind
from perfkit.diagnosis.repeating import phases
from perfkit.diagnosis.stored import kept
from perfkit.format import duration
from perfkit.selection import Selection

# operations of the GPU and their time, too few to judge a program by (convention)
FEW = 10
SHORT_NS = 1_000_000
# Of a start-up: how often a kernel runs on average, and the share of the time in which GPUs work
# (conventions).
ONCE = 2.0
LEAST_WORK = 0.01
REMEDY = "Record steady steps of the program before you optimise it"


def doubts(view: Selection) -> Iterator[Doubt]:
    """Yield that the recording holds too little work to judge a program: hardly any, or its start-up."""
    count = len(view.run.kernels) + len(view.run.copies)
    if seen := start_up_only(view) or _few(view):
        yield Doubt(
            Kind.TOO_LITTLE,
            seen,
            count,
            count,
            "operations",
            "What the program does again and again is not recorded, so perfkit is sure of no cause",
            REMEDY,
            1.0,
        )


@kept
def start_up_only(view: Selection) -> str:
    """Return how little work of the GPU there is, where nothing but the start of a program was recorded; or nothing.

    Kernels run about once each, nothing repeats, and the GPUs work for a hundredth of the time at
    most, under 1 ms.
    """
    kernels = view.all_kernels
    if kernels.empty:
        return ""
    times = kernels.groupby(["rank", "gpu", "full_name"], observed=True).size()
    if times.mean() >= ONCE:
        return ""
    seen = timeline.busy(view.kernels, view.copies, window=view.measured, others=view.other_kernels)
    worked, span = (int(seen[name].sum()) for name in ("device_busy_ns", "span_ns"))
    if worked >= SHORT_NS or worked > LEAST_WORK * span:
        return ""
    if phases(view)["phase"].eq("loop").any():
        return ""
    return (
        f"The recording holds only the start-up of a program, too little to judge it: {len(kernels):,} kernels of "
        f"{len(times):,} names, and {duration(worked)} of work in {duration(span)}"
    )


def _few(view: Selection) -> str:
    times = pd.concat([view.run.kernels["dur_ns"], view.run.copies["dur_ns"]])
    count = len(times)
    if not 0 < count < FEW or times.sum() >= SHORT_NS:
        return ""
    return f"The recording holds only {count} operation{'s' * (count > 1)} of the GPU"
