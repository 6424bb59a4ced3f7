"""How much longer is a run because the framework's profiler recorded it?

The profiler times and stores each operator and each call, which the CPU pays for. A GPU with enough
work queued does not notice; a GPU that waits for launches idles longer. So its own time lies in the
short gaps, where launches hold the GPU up.

LEAST, MOST and STEP_SLOWED are from programs of an H200 and an H100 that were timed with and
without the profiler and whose GPUs idle in short gaps for 0.4 of the time or more (archives of
data). In every second one of them, on which they were fitted, the profiler took 0.47 to 0.76 of
these gaps and made a step 1.4 to 2.3 times as long. Of the other nine, six lie between.
"""

import math
from dataclasses import replace

import numpy as np

from perfkit.analysis.intervals import ends
from perfkit.diagnosis.finding import Gain
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import STEADY, busy, idle_gaps
from perfkit.format import percent
from perfkit.selection import Selection

# Times as long a CPU takes to launch: measured 1.4 to 2.7 (data/README.md, H200).
SLOWED = 2.7
STEP_SLOWED = 2.4  # times as long a step takes
LEAST, MOST = 0.45, 0.8  # of the time in short gaps is the profiler's
PAUSE_NS = 1_000_000  # a longer gap belongs to what no launch explains
USUAL = 4  # times the median gap: up to it a gap is like the others (convention)
HALF = 0.5  # of what remains; short gaps that take it hold the rest up (convention)
LITTLE = 0.01  # of the time
STORED_NS = (
    20_000  # of an operator, a call or a function: more than the profiler needs (convention)
)
COLLECTOR = "collector"  # the profiler's line of the ledger
OF_THE_TIME = (
    Gain.whole,
    STEADY,
)  # gains of other things, such as more GPUs, save no time of this one
FASTER = f"without the profiler the CPU may launch up to {SLOWED} times as fast"


def slowed(view: Selection) -> float:
    """Return how many times as long the CPU may take because the framework's profiler recorded it.

    1 without one.
    """
    of_ops = view.framework
    is_recorded = len(of_ops.ops) > 0 and len(of_ops.all_kernels) == len(view.all_kernels)
    return SLOWED if is_recorded else 1.0


@kept
def pause_ns(view: Selection) -> float:
    """Return from which length on a gap is no cost of launching, ns: PAUSE_NS.

    A CPU that runs operators slowly needs longer, but for most launches: where the median gap is
    shorter than PAUSE_NS, those of up to USUAL times its length count too.
    """
    gaps = idle_gaps(view)
    if gaps is None or gaps.empty or view.framework.ops.empty:
        return PAUSE_NS
    usual = float(gaps["dur_ns"].median())
    return max(PAUSE_NS, USUAL * usual) if usual < PAUSE_NS else PAUSE_NS


@kept
def short_gaps(view: Selection) -> float:
    """Return the share of the time in gaps shorter than `pause_ns`; 0 without the profiler."""
    gaps = idle_gaps(view)
    if slowed(view) == 1 or gaps is None:
        return 0.0
    short = gaps["dur_ns"][gaps["dur_ns"] < pause_ns(view)].sum()
    return float(short / busy(view)["span_ns"].sum())


@kept
def by_profiler(view: Selection) -> float:
    """Return the share of the time in short gaps that the profiler can take at most.

    It stores what begins in a gap: operators, calls and functions.
    """
    gaps = idle_gaps(view)
    if slowed(view) == 1 or gaps is None:
        return 0.0
    short = gaps[gaps["dur_ns"] < pause_ns(view)]
    taken = 0
    for rank, mine in short.groupby("rank"):
        tables = (view.framework.ops, view.api_calls, view.python_calls)
        begun = np.sort(np.concatenate([t.loc[t["rank"] == rank, "start_ns"] for t in tables]))
        start, end = ends(mine)
        stored = np.searchsorted(begun, end) - np.searchsorted(begun, start)
        taken += int(np.minimum(end - start, STORED_NS * stored).sum())
    return float(taken / busy(view)["span_ns"].sum())


def _working(view: Selection) -> float:
    """Return the share of the time in which the GPUs work."""
    times = busy(view)
    return float(times["device_busy_ns"].sum() / times["span_ns"].sum())


def unprofiled(view: Selection) -> tuple[float, float]:
    """Return how long the run is without the profiler at least and at most, as shares of its time."""
    short = short_gaps(view)
    least = max(1 - MOST * short, 1 / STEP_SLOWED)
    return least, 1 - LEAST * short


def without_profiler(view: Selection, gain: Gain, *, is_idle: bool) -> Gain:
    """Return a gain whose best case is that of the program without the profiler, if it has one GPU.

    Which of several GPUs the others wait for may be another one without the profiler. The profiler's
    time is in what remains: without it less remains, and the same saving is a larger part. This
    matters where the short gaps are most of what remains.
    A gain that saves no time of this run, such as that of GPUs that nobody uses, stays as it is.
    `is_idle`: the gain is of idle time alone; the GPU's work then remains, and is not the profiler's.
    """
    short = short_gaps(view)
    gpus = view.all_kernels[["rank", "gpu"]].drop_duplicates()
    if not 1 < gain.high < math.inf or len(gpus) > 1 or gain.whole not in OF_THE_TIME:
        return gain
    remains = 1 / gain.high
    if short < HALF * remains:
        return gain
    most = min(MOST * min(short, remains), (1 - 1 / SLOWED) * remains)
    taken = min(most, max(0.0, remains - _working(view))) if is_idle else most
    if taken < LITTLE * remains:
        return gain
    high = 1 + (1 - remains) / (remains - taken)
    said = f"Of what remains, {percent(taken / remains)} may be the profiler's own time"
    beyond = (*gain.beyond, COLLECTOR)
    further = (*gain.further, said)
    return replace(gain, high=high, further=further, beyond=beyond, saves=1 - remains)
