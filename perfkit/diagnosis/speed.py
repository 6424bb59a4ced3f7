"""Rules about what slows kernels down: a clock that fell, pages that move while they run.

The highest clock is the one reached for a hundredth of the time in which kernels ran: single
readings may be wrong. A clock counts as lowered below nine tenths of it, after the GPU has reached
that once: a GPU that wakes up is not slowed down. Where the log gives a reason for a low clock, it
is held against the recorded maximum, and nothing needs to have been reached. What is lost is the
time of the kernels then, less what they would take at the highest clock.

Pages of unified memory that the driver moves are copies without a CUDA call, from managed to
managed memory. They are told where they take a tenth of the time. Whether a kernel that runs
meanwhile waits for them is not recorded.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.alignment import aligned, on
from perfkit.analysis.causes import covered, migrated
from perfkit.analysis.intervals import cut, devices, ends, intersect, subtract, total, union
from perfkit.analysis.readings import CAUSES, as_of, is_lowered, readings, throttling
from perfkit.diagnosis import blocks
from perfkit.diagnosis.finding import Figure, Finding, removing
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.copies import UNIFIED_MEMORY
from perfkit.diagnosis.rules.machine import CLOCK_LOWERED
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import busy, named, span_ns, unrecorded
from perfkit.errors import PerfkitError
from perfkit.format import number, percent, size
from perfkit.selection import Selection

CLOCKS = ("sm_clock_hz", "gpc_clock_hz")
LOG_LONGER = "Log clock, power and temperature for an hour: {gpu_log}"
NOTABLE = 0.1
LOW = 0.9
REACHED = 0.99


class Lowered(NamedTuple):
    """The GPU that loses most by a lowered clock: times in ns, clocks in Hz while kernels run.

    `ratio` is how many times as long the same kernels last then; NaN where none ran in both.
    """

    name: str
    rank: int
    gpu: int
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


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what slows down kernels, though the GPU is busy."""
    if unrecorded(view):
        return
    yield from _clock(view)
    yield from blocks.findings(view)
    yield from _migrations(view)


@kept
def lowered(view: Selection) -> Lowered | None:
    """Return the GPU that loses most time by a lowered clock.

    None where no clock fell while kernels ran.
    """
    for metric in CLOCKS:
        with suppress(PerfkitError):
            found = readings(view.samples, metric, window=view.window)
            if len(found.time):
                joined = aligned(found, view.all_kernels, view.window)
                break
    else:
        return None
    begin, finish = (
        joined.axis.at(joined.of_reading, at) for at in (found.time, found.time + found.hold)
    )
    under = covered(on(joined.axis, joined.busy), begin, finish)
    reasons = np.any([is_lowered(view.samples, found, cause) for cause in CAUSES], axis=0)
    most = as_of(readings(view.samples, "sm_max_clock_hz"), found)
    columns = {"time": found.time, "hz": found.value, "ns": under, "told": reasons, "most_hz": most}
    frame = pd.DataFrame({"device": joined.of_reading, **columns})
    of_device = (
        (at, frame[(frame["device"] == at) & (frame["ns"] > 0)]) for at in joined.both.tolist()
    )
    made = [_of_device(view, joined.index.iloc[at], of) for at, of in of_device]
    told = [one for one in made if one is not None]
    return max(told, key=lambda one: one.lost_ns / one.span_ns, default=None)


def _of_device(view: Selection, device: pd.Series, of: pd.DataFrame) -> Lowered | None:
    """Return what one GPU loses; its readings while kernels ran, by time, with the time of kernels under each."""
    if of.empty:
        return None
    rising = of.sort_values("hz", kind="stable")
    above = rising["ns"].cumsum() >= REACHED * rising["ns"].sum()
    highest = float(rising.loc[above, "hz"].iloc[0])
    told = of["told"].to_numpy()
    if told.any():  # without the reason the clock would reach its maximum
        highest = float(np.fmax(of.loc[told, "most_hz"].max(), highest))
    high = (of["hz"] >= LOW * highest).to_numpy()
    low = ~high & (np.maximum.accumulate(high) | told)
    spans = busy(view)
    span = spans.loc[spans["rank"].eq(device["rank"]) & spans["gpu"].eq(device["gpu"]), "span_ns"]
    if not low.any() or span.empty:
        return None
    to = float(np.average(of.loc[low, "hz"], weights=of.loc[low, "ns"]))
    name = named(device, view.all_kernels)
    kernels = cut(view.all_kernels, view.window)
    kernels = kernels[kernels["rank"].eq(device["rank"]) & kernels["gpu"].eq(device["gpu"])]
    ratio = _longer(kernels, of["time"].to_numpy(), low)
    place = int(device["rank"]), int(device["gpu"])
    return Lowered(
        name,
        *place,
        int(of["ns"].sum()),
        int(of.loc[low, "ns"].sum()),
        highest,
        to,
        ratio,
        int(span.iloc[0]),
    )


def _longer(kernels: pd.DataFrame, time: np.ndarray, low: np.ndarray) -> float:
    """Return how many times as long the same kernels last while the clock is low."""
    kernels = kernels[kernels["family"] != "communication"]
    at = np.searchsorted(time, kernels["start_ns"] + kernels["dur_ns"] // 2, side="right") - 1
    kernels = kernels.assign(low=low[np.maximum(at, 0)], grid=kernels["grid_blocks"].fillna(-1))
    by = (
        kernels.groupby(["full_name", "grid", "low"], observed=True)["dur_ns"]
        .agg(["sum", "size"])
        .reset_index()
    )
    slow, fast = (by[by["low"] == side].set_index(["full_name", "grid"]) for side in (True, False))
    both = slow.join(fast, how="inner", lsuffix="_slow", rsuffix="_fast")
    usual = float((both["sum_fast"] / both["size_fast"] * both["size_slow"]).sum())
    return float(both["sum_slow"].sum()) / usual if usual else float("nan")


@kept
def slowed_by_clock(view: Selection) -> Lowered | None:
    """Return what the clock costs a GPU.

    None unless it was low for a tenth of the kernels' time.
    """
    found = None if unrecorded(view) else lowered(view)
    return found if found and found.low_ns >= NOTABLE * found.kernel_ns else None


def _reasons(view: Selection, found: Lowered) -> str:
    """Return what the log gives as the reasons for the low clock; empty where it gives none."""
    table = throttling(view.samples, window=view.window)
    of = table[table["rank"].eq(found.rank) & table["gpu"].eq(found.gpu)]
    reasons = {"power": "the power limit", "thermal": "heat", "other": "another reason"}
    given = [text for cause, text in reasons.items() if (of[f"{cause}_frac"] >= NOTABLE).any()]
    return f" The log gives the reason: {' and '.join(given)}." if given else ""


def _clock(view: Selection) -> Iterator[Finding]:
    found = slowed_by_clock(view)
    if found is None:
        return
    lost = found.lost_ns / found.span_ns
    low = Figure(
        "clock_low_frac",
        "Clock lowered",
        found.low_ns / found.kernel_ns,
        "1",
        (
            "share of the time with kernels during which the clock was below 90 % of its highest value"
        ),
        "SAMPLES, KERNELS",
    )
    ratio = Figure(
        "clock_ratio",
        "Lowered clock",
        found.to_hz / found.from_hz,
        "1",
        (
            "average lowered clock, as a share of the highest clock (reached for 1 % of the kernels' "
            "time)"
        ),
        "SAMPLES, KERNELS",
    )
    evidence = [low, ratio]
    text = (
        f"On {found.name} the clock was low while kernels ran. This costs kernels {percent(lost)} "
        "of the time."
    )
    text += _reasons(view, found)
    if not np.isnan(found.ratio):
        longer = Figure(
            "clock_kernel_ratio",
            "Same kernels, low clock",
            found.ratio,
            "1",
            ("ratio of the same kernels' average durations (name, grid): low clock to high clock"),
            "KERNELS, SAMPLES",
        )
        evidence.append(longer)
        text += f" The same kernels take {number(found.ratio)} times as long at the low clock."
    clocks = f"from {found.from_hz / 1e6:,.0f} to {found.to_hz / 1e6:,.0f} MHz"
    title = f"The clock falls {clocks} for {low.text} of the kernel time"
    gain = removing(
        lost, "best case: kernels run at the highest clock; kernels that wait for memory save less"
    )
    told = tell(CLOCK_LOWERED, title, text, tuple(evidence), gain)
    yield replace(told, next=LOG_LONGER) if _reasons(view, found) else told


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
    alone = subtract(moving, running)
    beside = intersect(moving, running)
    alone_ns, beside_ns = (int(total(part, len(index)).sum()) for part in (alone, beside))
    return len(copies), int(copies["bytes"].sum()), alone_ns, beside_ns


def _migrations(view: Selection) -> Iterator[Finding]:
    count, moved, alone_ns, beside_ns = migrations(view)
    span = span_ns(view)
    if not count or alone_ns + beside_ns < NOTABLE * span:
        return
    alone = alone_ns / span
    beside = beside_ns / span
    exposed = Figure(
        "migration_frac",
        "Page migrations, no kernel",
        alone,
        "1",
        (
            "share of the span during which the driver moved pages of unified memory and no kernel ran"
        ),
        "COPIES, KERNELS",
    )
    hidden = Figure(
        "migration_beside_frac",
        "Page migrations, kernels run",
        beside,
        "1",
        (
            "share of the span during which the driver moved pages of unified memory while kernels ran"
        ),
        "COPIES, KERNELS",
    )
    text = (
        f"The driver moves {size(moved)} in {count:,} migrations. They run alone for {exposed.text} "
        "of the time and "
    )
    text += f"for {hidden.text} while kernels run. These kernels may wait for the pages."
    title = f"Page migrations of unified memory take {percent(alone + beside)} {of_the_time(view)}"
    worst = "worst case: none, because kernels do not wait for the pages"
    gain = removing(alone + beside, "best case: the run saves this time", worst=worst)
    yield tell(UNIFIED_MEMORY, title, text, (exposed, hidden), gain)
