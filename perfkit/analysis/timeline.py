"""Where does the time of each GPU go?

Time is the union over all streams and processes of a device: what runs at once is counted once.
With a window, operations are cut at its edges and every device of the tables is seen over the whole
window, worked or not; without one, from the start of the first to the end of the last operation of
any device of its rank; a mapping gives each rank a window that holds all of its operations
(`Selection.measured`). Communication kernels are those of family "communication"; a memset is
computation, every other row of COPIES a copy. `others` is a second KERNELS frame: the kernels that
the user has not selected, which keep the device busy all the same. `unknown` are stretches (rank,
gpu, start_ns, dur_ns) in which nobody knows whether a device worked: they are taken out of the span
and of every part, so that shares are shares of the known time. Times beyond int64 raise
PerfkitError.
"""

from itertools import accumulate

import numpy as np
import pandas as pd

from perfkit.analysis import intervals
from perfkit.analysis.intervals import (
    Int,
    Intervals,
    Window,
    Windows,
    bounds,
    ends,
    merge,
    share,
    spans,
    subtract,
    total,
    union,
)
from perfkit.errors import PerfkitError
from perfkit.tables import COPIES, KERNELS, SAMPLES

KINDS = pd.Index(["computation", "communication", "copy"])
PARTS = [
    "computation_ns",
    "exposed_communication_ns",
    "other_kernels_ns",
    "exposed_copy_ns",
    "idle_ns",
]
PERCENTILES = {"p5": 0.05, "p50": 0.5, "p95": 0.95}


def busy(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    *,
    window: Windows | None = None,
    others: pd.DataFrame | None = None,
    unknown: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return |kernels| and |kernels U others U copies| of each device, and both as fractions of its known span.

    One row per rank and gpu, ascending: start_ns and span_ns of what was looked at, kernel_busy_ns,
    device_busy_ns (int64, 0..span_ns), kernel_busy_frac, device_busy_frac. With `unknown` span_ns
    is the known time, and there are unknown_ns and end_ns too: end_ns - start_ns = span_ns +
    unknown_ns.
    """
    frames = checked(kernels, copies, others)
    index, groups = intervals.devices(*frames)
    start, end = spans(frames, groups, len(index), window)
    gone = _unknown(unknown, index, start, end)
    sets = [union(*ends(frame, window), group) for frame, group in zip(frames, groups, strict=True)]
    on_kernels, on_device = (
        total(_known(part, gone), len(index)) for part in (sets[0], merge(*sets))
    )
    unknown_ns = total(gone, len(index))
    span = end - start - unknown_ns
    index = index.assign(
        start_ns=start, span_ns=span, kernel_busy_ns=on_kernels, device_busy_ns=on_device
    )
    index = index.assign(
        kernel_busy_frac=share(on_kernels, span), device_busy_frac=share(on_device, span)
    )
    return index if unknown is None else index.assign(unknown_ns=unknown_ns, end_ns=end)


def _unknown(unknown: pd.DataFrame | None, index: pd.DataFrame, start: Int, end: Int) -> Intervals:
    """Return the stretches of the devices in `index`, within the span of each."""
    none = np.zeros(0, np.int64)
    if unknown is None or unknown.empty or index.empty:
        return Intervals(none, none, none)
    keys = intervals.device_key(index["rank"].to_numpy(), index["gpu"].to_numpy())
    wanted = intervals.device_key(unknown["rank"].to_numpy(), unknown["gpu"].to_numpy())
    group = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    there = keys[group] == wanted
    first, last = ends(unknown)
    group = group[there]
    return union(np.maximum(first[there], start[group]), np.minimum(last[there], end[group]), group)


def _known(part: Intervals, gone: Intervals) -> Intervals:
    return subtract(part, gone) if len(gone.start) else part


def checked(
    kernels: pd.DataFrame, copies: pd.DataFrame, others: pd.DataFrame | None
) -> list[pd.DataFrame]:
    """Return the three tables, `others` empty where it was not given; SchemaError if one is another table."""
    others = kernels.iloc[:0] if others is None else others
    return [KERNELS.check(kernels), COPIES.check(copies), KERNELS.check(others)]


def breakdown(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    *,
    window: Windows | None = None,
    others: pd.DataFrame | None = None,
    unknown: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return five parts of each device's time that sum to its span, as far as that is known, exactly.

    With COMP the compute kernels and memsets, COMM the communication kernels, OTHER the kernels in
    `others` and COPY the copies: computation is |COMP|, exposed communication |COMM - COMP|, other
    kernels |OTHER - COMP - COMM|, exposed copy |COPY - COMP - COMM - OTHER|, idle the rest.

    One row per rank and gpu, ascending: span_ns, computation_ns, exposed_communication_ns,
    other_kernels_ns (0 without `others`), exposed_copy_ns, idle_ns (int64, 0..span_ns).

    Source: AMD-AGI/TraceLens, `GPUEventAnalyser`: the split and memset as computation. OTHER is
    perfkit's.
    """
    frames = checked(kernels, copies, others)
    index, groups = intervals.devices(*frames)
    start, end = spans(frames, groups, len(index), window)
    gone = _unknown(unknown, index, start, end)
    span = end - start - total(gone, len(index))
    covered = accumulate(layers(frames, groups, window), merge)
    reach = [total(_known(part, gone), len(index)) for part in covered]
    parts = np.diff(np.stack([np.zeros_like(start), *reach, span]), axis=0)
    table = index.assign(span_ns=span, **dict(zip(PARTS, parts, strict=True)))
    wrong = table[(parts < 0).any(axis=0)]
    if len(wrong):
        raise PerfkitError(
            f"breakdown: {wrong.iloc[0].to_dict()} has a part below 0. Check the times of the "
            "capture."
        )
    return table


def layers(
    frames: list[pd.DataFrame], groups: list[Int], window: Windows | None
) -> list[Intervals]:
    """Return COMP, COMM, OTHER and COPY: each counts where none before it does."""
    kernel, copy, other = (
        (*ends(frame, window), group) for frame, group in zip(frames, groups, strict=True)
    )
    communicates, sets = frames[0]["family"] == "communication", frames[1]["direction"] == "memset"
    computation = merge(_where(~communicates, *kernel), _where(sets, *copy))
    return [computation, _where(communicates, *kernel), union(*other), _where(~sets, *copy)]


def _where(mark: pd.Series, start: Int, end: Int, group: Int) -> Intervals:
    return union(start, np.where(mark, end, start), group)


def bins(
    kernels: pd.DataFrame, copies: pd.DataFrame, *, bins: int = 1000, window: Window | None = None
) -> pd.DataFrame:
    """Return the busy time of each stream in equal bins of one time axis, kind by kind.

    The bins tile the window (the common span of all devices when omitted) with integer edges, their
    widths differ by at most 1 ns. There are `bins`, at least 1 (else ValueError), and no more than
    the window has nanoseconds. Busy is the exact overlap with the union of the stream's operations.

    One row per rank, gpu, stream, kind (category: computation, communication, copy) and bin with
    busy time, sorted by these: start_ns, dur_ns of the bin, busy_ns (1..dur_ns), busy_frac (above
    0).
    """
    if bins < 1:
        raise ValueError(f"bins: {bins} is not at least 1")
    frames = [KERNELS.check(kernels), COPIES.check(copies)]
    index, groups = intervals.devices(*frames)
    start, end = spans(frames, groups, len(index), window)
    edges = (
        intervals.tiles((int(start.min()), int(end.max())), bins)
        if len(index)
        else np.zeros(1, np.int64)
    )
    kinds = kernels["family"].eq("communication") * 1, copies["direction"].ne("memset") * 2
    streams = np.unique(np.concatenate([frame["stream"].unique() for frame in frames]))
    shape = (max(len(index), 1), max(len(streams), 1), len(KINDS))
    keys = zip(
        groups, (np.searchsorted(streams, frame["stream"]) for frame in frames), kinds, strict=True
    )
    lane = [np.ravel_multi_index(key, shape) for key in keys]
    lanes = np.unique(np.concatenate([*map(pd.unique, lane)]))
    sets = (
        union(*ends(frame, window), np.searchsorted(lanes, of))
        for frame, of in zip(frames, lane, strict=True)
    )
    which, at, busy_ns = intervals.binned(merge(*sets), edges)
    device, stream, kind = np.unravel_index(lanes[which], shape)
    stream = streams[stream]
    dur_ns = np.diff(edges)[at]
    table = (
        index.take(device)
        .reset_index(drop=True)
        .assign(stream=stream, kind=pd.Categorical.from_codes(kind, KINDS))
    )
    return table.assign(
        start_ns=edges[at], dur_ns=dur_ns, busy_ns=busy_ns, busy_frac=share(busy_ns, dur_ns)
    )


def samples_mean(samples: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return mean, percentiles and maximum of each metric's readings in the window.

    Every reading weighs the same and NaN readings are left out. Percentiles interpolate linearly
    between readings.

    One row per rank, gpu and metric read, sorted by these: count (without NaN), mean, p5, p50, p95,
    max (float64, in the metric's unit, NaN where count is 0).
    """
    SAMPLES.check(samples)
    if window is not None:
        first, last = bounds(window)
        samples = samples[(samples["time_ns"] >= first) & (samples["time_ns"] < last)]
    by_text = samples["metric"].cat.reorder_categories(sorted(samples["metric"].cat.categories))
    readings = samples["value"].groupby([samples["rank"], samples["gpu"], by_text], observed=True)
    percentiles = (
        readings.quantile(np.array([*PERCENTILES.values()]))
        .to_numpy()
        .reshape(-1, len(PERCENTILES))
    )
    table = (
        readings.agg(["count", "mean"])
        .reset_index()
        .join(pd.DataFrame(percentiles, columns=[*PERCENTILES]))
    )
    return table.assign(max=readings.max().to_numpy())
