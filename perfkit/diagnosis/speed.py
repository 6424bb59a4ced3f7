"""Rules about what slows kernels down: a clock that fell, too few blocks, pages that move while they run.

The highest clock is the one reached for a hundredth of the time in which kernels ran: single readings may be wrong. A
clock counts as lowered below nine tenths of it, after the GPU has reached that once: a GPU that wakes up is not slowed
down. What is lost is the time of the kernels then, less what they would take at the highest clock.

A kernel with fewer blocks than the GPU has SMs leaves SMs without work. Kernels under 10 µs are left out, since their
launch costs more; so are communication kernels, which need few SMs, and time in which other kernels run at the same
time. Three tenths of the time in such kernels, and a tenth lost, are told (conventions).

Pages of unified memory that the driver moves are copies without a CUDA call, from managed to managed memory. They are
told where they take a tenth of the time. Whether a kernel that runs meanwhile waits for them is not recorded.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import covered, migrated
from perfkit.analysis.intervals import cut, devices, ends, intersect, subtract, total, union
from perfkit.analysis.monitoring.alignment import aligned, on
from perfkit.analysis.monitoring.readings import readings
from perfkit.diagnosis.finding import Figure, Finding, kept, removing, severity
from perfkit.diagnosis.rules import tell
from perfkit.diagnosis.timeline import busy, named, span_ns, unrecorded
from perfkit.errors import PerfkitError
from perfkit.format import duration, number, percent, printable, size
from perfkit.selection import Selection

CLOCKS = ("sm_clock_hz", "gpc_clock_hz")
NOTABLE, LOW, REACHED = 0.1, 0.9, 0.99
SHORT_NS, TAKEN = 10_000, 0.3


class Lowered(NamedTuple):
    """The GPU that loses most by a lowered clock: times in ns, clocks in Hz while kernels run.

    `ratio` is how many times as long the same kernels last then; NaN where none ran in both.
    """

    name: str
    kernel_ns: int
    low_ns: int
    from_hz: float
    to_hz: float
    ratio: float
    span_ns: int

    @property
    def lost_ns(self) -> float:
        """What the kernels would save at the highest clock."""
        return self.low_ns * (1 - self.to_hz / self.from_hz)


class Few(NamedTuple):
    """Kernels with fewer blocks than SMs on the GPU where they cost most: how long they run alone, and the longest."""

    name: str
    alone_ns: int
    lost_ns: float
    span_ns: int
    longest: str
    longest_ns: int
    blocks: int
    sms: int


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what slows down kernels, though the GPU is busy."""
    if unrecorded(view):
        return
    throttled = known.get("log_throttled_frac")
    if throttled is None or throttled.value < NOTABLE:  # the reasons say more than the clock alone
        yield from _clock(view)
    yield from _few_blocks(view)
    yield from _migrations(view)


@kept
def lowered(view: Selection) -> Lowered | None:
    """Return the GPU that loses most time by a lowered clock; None where no clock fell while kernels ran."""
    for metric in CLOCKS:
        with suppress(PerfkitError):
            found = readings(view.samples, metric, window=view.window)
            if len(found.time):
                joined = aligned(found, view.all_kernels, view.window)
                break
    else:
        return None
    begin, finish = (joined.axis.at(joined.of_reading, at) for at in (found.time, found.time + found.hold))
    under = covered(on(joined.axis, joined.busy), begin, finish)
    frame = pd.DataFrame({"device": joined.of_reading, "time": found.time, "hz": found.value, "ns": under})
    of_device = ((at, frame[(frame["device"] == at) & (frame["ns"] > 0)]) for at in joined.both.tolist())
    made = [_of_device(view, joined.index.iloc[at], of) for at, of in of_device]
    told = [one for one in made if one is not None]
    return max(told, key=lambda one: one.lost_ns / one.span_ns, default=None)


def _of_device(view: Selection, device: pd.Series, of: pd.DataFrame) -> Lowered | None:
    """Return what one GPU loses; its readings while kernels ran, by time, with the time of kernels under each."""
    if of.empty:
        return None
    rising = of.sort_values("hz")
    above = rising["ns"].cumsum() >= REACHED * rising["ns"].sum()
    highest = float(rising.loc[above, "hz"].iloc[0])
    high = (of["hz"] >= LOW * highest).to_numpy()
    low = ~high & (np.maximum.accumulate(high))
    spans = busy(view)
    span = spans.loc[spans["rank"].eq(device["rank"]) & spans["gpu"].eq(device["gpu"]), "span_ns"]
    if not low.any() or span.empty:
        return None
    to = float(np.average(of.loc[low, "hz"], weights=of.loc[low, "ns"]))
    name = named(int(device["rank"]), int(device["gpu"]), view.all_kernels["rank"].nunique())
    kernels = cut(view.all_kernels, view.window)
    kernels = kernels[kernels["rank"].eq(device["rank"]) & kernels["gpu"].eq(device["gpu"])]
    ratio = _longer(kernels, of["time"].to_numpy(), low)
    return Lowered(name, int(of["ns"].sum()), int(of.loc[low, "ns"].sum()), highest, to, ratio, int(span.iloc[0]))


def _longer(kernels: pd.DataFrame, time: np.ndarray, low: np.ndarray) -> float:
    """Return how many times as long the same kernels last while the clock is low."""
    kernels = kernels[kernels["family"] != "communication"]
    at = np.searchsorted(time, kernels["start_ns"] + kernels["dur_ns"] // 2, side="right") - 1
    kernels = kernels.assign(low=low[np.maximum(at, 0)], grid=kernels["grid_blocks"].fillna(-1))
    by = kernels.groupby(["full_name", "grid", "low"], observed=True)["dur_ns"].agg(["sum", "size"]).reset_index()
    slow, fast = (by[by["low"] == side].set_index(["full_name", "grid"]) for side in (True, False))
    both = slow.join(fast, how="inner", lsuffix="_slow", rsuffix="_fast")
    usual = float((both["sum_fast"] / both["size_fast"] * both["size_slow"]).sum())
    return float(both["sum_slow"].sum()) / usual if usual else float("nan")


def _clock(view: Selection) -> Iterator[Finding]:
    found = lowered(view)
    if found is None or found.low_ns < NOTABLE * found.kernel_ns:
        return
    lost = found.lost_ns / found.span_ns
    definition = "share of the time with kernels during which the clock was below 90 % of its highest value"
    low = Figure("clock_low_frac", "Clock lowered", found.low_ns / found.kernel_ns, "1", definition, "SAMPLES, KERNELS")
    definition = "average lowered clock, as a share of the highest clock (reached for 1 % of the kernels' time)"
    ratio = Figure("clock_ratio", "Lowered clock", found.to_hz / found.from_hz, "1", definition, "SAMPLES, KERNELS")
    evidence = [low, ratio]
    text = f"On {found.name} the clock first was high and then fell. This costs kernels {percent(lost)} of the time."
    if not np.isnan(found.ratio):
        definition = "ratio of the same kernels' average durations (name, grid): low clock to high clock"
        longer = Figure(
            "clock_kernel_ratio", "Same kernels, low clock", found.ratio, "1", definition, "KERNELS, SAMPLES"
        )
        evidence.append(longer)
        text += f" The same kernels take {number(found.ratio)} times as long at the low clock."
    clocks = f"from {found.from_hz / 1e6:,.0f} to {found.to_hz / 1e6:,.0f} MHz"
    title = f"The clock falls {clocks} for {low.text} of the kernel time"
    gain = removing(lost, "best case: kernels run at the highest clock; kernels that wait for memory save less")
    yield tell("clock_lowered", title, severity(lost), text, tuple(evidence), gain)


@kept
def few(view: Selection) -> Few | None:
    """Return the GPU that loses most in kernels of few blocks, None without such kernels or a number of SMs."""
    known = view.devices.dropna(subset=["sm_count"])[["rank", "gpu", "sm_count"]].astype("int64")
    kernels = view.all_kernels
    start, end = ends(kernels, view.window)
    index, (device,) = devices(kernels)
    sms = index.merge(known, on=["rank", "gpu"], how="left")["sm_count"].to_numpy(float)
    blocks = kernels["grid_blocks"].to_numpy("float64", na_value=np.nan)
    is_few = (blocks < sms[device]) & (kernels["dur_ns"].to_numpy() >= SHORT_NS) & (end > start)
    is_few &= (kernels["family"] != "communication").to_numpy()
    if not is_few.any():
        return None
    alone, rest = (union(start[of], end[of], device[of]) for of in (is_few, ~is_few))
    alone_ns = total(subtract(alone, rest), len(index))
    taken = total(alone, len(index))
    made = []
    spans = index.merge(busy(view), on=["rank", "gpu"], how="left")["span_ns"]
    for at in np.unique(device[is_few]).tolist():
        mine = is_few & (device == at)
        length = (end - start)[mine]
        filled = float((length * blocks[mine]).sum()) / (int(taken[at]) * sms[at])  # several at once fill more
        of = kernels[mine].assign(length=length).groupby(["full_name", "grid_blocks"], observed=True)["length"].sum()
        longest, least = of.idxmax()
        lost = float(alone_ns[at]) * max(1 - filled, 0.0)
        name = named(int(index["rank"][at]), int(index["gpu"][at]), index["rank"].nunique())
        span = int(spans[at])
        made.append(Few(name, int(alone_ns[at]), lost, span, str(longest), int(of.max()), int(least), int(sms[at])))
    return max(made, key=lambda one: one.lost_ns / one.span_ns)


def _few_blocks(view: Selection) -> Iterator[Finding]:
    found = few(view)
    if found is None or found.alone_ns < TAKEN * found.span_ns or found.lost_ns < NOTABLE * found.span_ns:
        return
    share, lost = found.alone_ns / found.span_ns, found.lost_ns / found.span_ns
    definition = f"share of the span of {found.name} during which only kernels with fewer blocks than SMs ran"
    taken = Figure("few_blocks_frac", "Kernels of few blocks", share, "1", definition, "KERNELS, DEVICES")
    definition = "share of the GPU's SMs that can work: blocks of the longest of these kernels per SM"
    part = Figure("few_blocks_sm_frac", "SMs it can use", found.blocks / found.sms, "1", definition, "KERNELS, DEVICES")
    text = (
        f"The longest is “{printable(found.longest, 80)}”: {found.blocks:,} blocks for {found.sms} SMs. It runs "
        f"for {duration(found.longest_ns)}, while at most {part.text} of the SMs work."
    )
    title = f"Kernels with fewer blocks than SMs take {taken.text} of the time"
    gain = removing(lost, "best case: their work spreads evenly over all SMs; blocks that fill an SM better save more")
    yield tell("few_blocks", title, severity(lost), text, (taken, part), gain)


@kept
def migrations(view: Selection) -> tuple[int, int, int, int]:
    """Return how many migrations there are, their bytes, and their time beside no kernel and beside kernels, ns."""
    copies = cut(view.copies, view.window)
    copies = copies[migrated(copies)]
    if copies.empty:
        return 0, 0, 0, 0
    index, (of_copy, of_kernel) = devices(copies, view.all_kernels)
    moving = union(*ends(copies, None), of_copy)
    running = union(*ends(view.all_kernels, view.window), of_kernel)
    alone, beside = subtract(moving, running), intersect(moving, running)
    alone_ns, beside_ns = (int(total(part, len(index)).sum()) for part in (alone, beside))
    return len(copies), int(copies["bytes"].sum()), alone_ns, beside_ns


def _migrations(view: Selection) -> Iterator[Finding]:
    count, moved, alone_ns, beside_ns = migrations(view)
    span = span_ns(view)
    if not count or alone_ns + beside_ns < NOTABLE * span:
        return
    alone, beside = alone_ns / span, beside_ns / span
    definition = "share of the span during which the driver moved pages of unified memory and no kernel ran"
    exposed = Figure("migration_frac", "Page migrations, no kernel", alone, "1", definition, "COPIES, KERNELS")
    definition = "share of the span during which the driver moved pages of unified memory while kernels ran"
    hidden = Figure("migration_beside_frac", "Page migrations, kernels run", beside, "1", definition, "COPIES, KERNELS")
    text = (
        f"The driver moves {size(moved)} in {count:,} migrations. They run alone for {exposed.text} of the time and "
        f"for {hidden.text} while kernels run. These kernels may wait for the pages."
    )
    title = f"Page migrations of unified memory take {percent(alone + beside)} of the time"
    reason = "best case: the run saves this time; worst case: none, because kernels do not wait for the pages"
    gain = removing(alone + beside, reason)
    yield tell("unified_memory", title, severity(alone + beside), text, (exposed, hidden), gain)
