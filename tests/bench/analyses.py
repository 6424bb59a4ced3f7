"""CPU seconds and memory of every analysis, against one `np.sort` of the starts of the kernels.

The capture is of eight GPUs in eight processes, with two streams and NCCL; a question that also takes copies or CUDA
calls takes all of theirs, and the number of rows is of all its tables. Transfers are of another capture. The memory is
the peak of the process while it answers, with the tables that it was asked of. Lanes answer for any window; their peers
are `timeline.bins` and pandas.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import perfkit
from perfkit import analysis, diagnosis
from perfkit.analysis import timeline
from perfkit.analysis.lanes import Lanes
from perfkit.analysis.ownership import Owners
from perfkit.tables import API_CALLS, KERNELS, RANGES
from tests import frames
from tests.bench import captures, fresh
from tests.bench.table import Row

TIMES = 2
SIZES = (1_000_000, 3_000_000, 10_000_000)
MOST_RATIO = 4.0
MOST_IN_ALL = 12.0  # of figures or findings, which ask many questions
PEER = "np.sort of the starts"
BUILD_S, LANES_S, MOST_BYTES = 1.2, 0.1, 4e9  # of lanes
OWNERS_S = 10.0
ONE = {"start_ns": 0, "dur_ns": 5}
BINS = "timeline.bins"
Answer = Callable[[], object]


def rows(kernels: int) -> Iterator[Row]:
    """Measure; yields a row of the table per analysis."""
    for count in sorted({min(kernels, size) for size in SIZES}):
        measured = fresh.call(cpu_seconds, captures.made(count, "node")).answer
        if count == min(kernels, SIZES[0]):
            measured |= fresh.call(transfers_seconds, captures.made(count, "copies"), count).answer
        _, peer_s, _ = measured.pop(PEER)
        for work, (size, cpu_s, peak) in measured.items():
            most = MOST_IN_ALL if work.startswith("diagnosis") else MOST_RATIO
            name = f"{work}, {size:,} rows, CPU"
            yield Row(
                name, cpu_s, PEER, peer_s, most_ratio=most, bar=f"at most {most:g}", peak_bytes=peak
            )


def lane_rows(kernels: int) -> Iterator[Row]:
    """Measure lanes; yields a row of the table per question."""
    measured = fresh.call(lane_seconds, captures.made(kernels, "node"))
    for work, (ours_s, peer, peer_s) in measured.answer.items():
        most_s = BUILD_S if work == "build" else LANES_S
        limits = {
            "most_seconds": most_s,
            "most_bytes": MOST_BYTES,
            "peak_bytes": measured.peak_bytes,
        }
        bar = f"under {most_s} s, {MOST_BYTES / 1e9:g} GB"
        yield Row(
            f"lanes, {work}, {kernels:,} kernels, CPU", ours_s, peer, peer_s, bar=bar, **limits
        )


def lane_seconds(path: str) -> dict[str, tuple[float, str, float]]:
    """Return the CPU seconds of each question, its peer and the peer's seconds."""
    run = perfkit.load(path)
    kernels, copies = run.kernels, run.copies
    lanes = Lanes(kernels, copies)
    start, end = lanes.span
    part, moment = (
        (start + (end - start) * 2 // 5, start + (end - start) * 3 // 5),
        (end // 2, end // 2 + 2_000_000),
    )
    half = np.arange(len(kernels["name"].cat.categories)) % 2 == 0
    codes = kernels["name"].cat.codes.to_numpy()
    questions: dict[str, tuple[Answer, str, Answer]] = {
        "build": (lambda: Lanes(kernels, copies), BINS, lambda: timeline.bins(kernels, copies)),
        "busy": (lanes.busy, BINS, lambda: timeline.bins(kernels, copies)),
        "busy of a fifth": (
            lambda: lanes.busy(window=part),
            BINS,
            lambda: timeline.bins(kernels, copies, window=part),
        ),
        "totals": (
            lanes.totals,
            "pandas groupby, sum",
            lambda: kernels.groupby("name", observed=True)["dur_ns"].sum(),
        ),
    }
    half_bins, rows_between = (
        lambda: timeline.bins(kernels[half[codes]], copies),
        partial(_between, kernels, *moment),
    )
    questions["busy of half the kernels"] = (lambda: lanes.busy(names=half), BINS, half_bins)
    questions["intervals of 2 ms"] = (
        lambda: lanes.intervals(window=moment),
        "pandas boolean index",
        rows_between,
    )
    return {
        work: (_least(ours, times=7)[0], peer, _least(theirs, times=1)[0])
        for work, (ours, peer, theirs) in questions.items()
    }


def _between(kernels: pd.DataFrame, first: int, last: int) -> pd.DataFrame:
    start, dur = kernels["start_ns"], kernels["dur_ns"]
    return kernels[(start < last) & (start + dur > first)]


def cpu_seconds(path: str) -> dict[str, tuple[int, float, int]]:
    """Return rows, CPU seconds and peak bytes of each analysis of a capture, and of the peer."""
    run = perfkit.load(path)
    kernels, copies, calls, ranges = run.kernels, run.copies, run.api_calls, run.ranges
    nothing = ranges.iloc[:0]
    both, launched = len(kernels) + len(copies), len(kernels) + len(calls)
    work: dict[str, tuple[int, Answer]] = {
        "timeline.busy": (both, lambda: analysis.timeline.busy(kernels, copies)),
        "timeline.breakdown": (both, lambda: analysis.timeline.breakdown(kernels, copies)),
        "timeline.bins": (both, lambda: analysis.timeline.bins(kernels, copies)),
        "gaps.idle_gaps": (
            both + len(calls),
            lambda: analysis.gaps.idle_gaps(kernels, copies, calls),
        ),
        "host.latency": (launched, lambda: analysis.host.latency(kernels, calls)),
        "kernels.summary": (len(kernels), lambda: analysis.kernels.summary(kernels)),
        "communication.overlap": (len(kernels), lambda: analysis.communication.overlap(kernels)),
        "steps.detect (NVTX)": (len(ranges), lambda: analysis.steps.detect(ranges, kernels)),
        "steps.detect (no NVTX)": (len(kernels), lambda: analysis.steps.detect(nothing, kernels)),
        PEER: (len(kernels), lambda: np.sort(kernels["start_ns"].to_numpy())),
    }
    found = {name: (size, *_least(question)) for name, (size, question) in work.items()}
    latency = analysis.host.latency(kernels, calls)
    found["host.latency_summary"] = (
        len(latency),
        *_least(partial(analysis.host.latency_summary, latency)),
    )
    del latency
    view = perfkit.select(run)  # answers are kept by the selection: once each
    found["diagnosis.figures"] = launched, *_least(lambda: diagnosis.figures(view), times=1)
    found["diagnosis.findings, after the figures"] = (
        launched,
        *_least(lambda: diagnosis.findings(view), times=1),
    )
    return found


def transfers_seconds(path: str, count: str) -> dict[str, tuple[int, float, int]]:
    """Return rows, CPU seconds and peak bytes of the summary of so many transfers."""
    copies = perfkit.load(path).copies.head(int(count))
    return {"memory.copied": (len(copies), *_least(lambda: analysis.memory.copied(copies)))}


def owner_rows(kernels: int) -> Iterator[Row]:
    """Measure `analysis.ownership` of nested ranges and kernels, 8 ranges for each kernel."""
    count = kernels // 5
    measured = fresh.call(owner_seconds, count).answer
    work = f"ownership, {8 * count:,} ranges of 8 threads, 8 levels deep, {count:,} kernels, CPU"
    limits = {"most_seconds": OWNERS_S, "bar": f"under {OWNERS_S} s", "peak_bytes": measured[1]}
    yield Row(work, measured[0], "none", None, **limits)


def owner_seconds(count: str) -> tuple[float, int]:
    """Return the CPU seconds and peak bytes of joining so many kernels with their ranges, and of the summary."""
    kernels, calls, ranges = _nested(int(count), np.random.default_rng(0))
    return _least(lambda: Owners(kernels, calls, by="range", ranges=ranges).summary())


def _nested(
    count: int, rng: np.random.Generator
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return KERNELS, API_CALLS and RANGES: of each thread ranges in ranges, of 40 names, that launch in any order."""
    thread, number = np.repeat(np.arange(8), count), np.tile(np.arange(count), 8)
    level, around = number % 8, 800 * (number // 8)
    name = pd.Categorical.from_codes(
        rng.integers(0, 40, 8 * count), [f"range {i}" for i in range(40)]
    )
    when = {"start_ns": around + 10 * level, "dur_ns": 800 - 20 * level}
    ranges = _many(frames.ranges(ONE), process=thread, thread=thread, name=name, **when)
    launch = {
        "process": thread[::8],
        "start_ns": rng.integers(0, 100 * count, count),
        "correlation": np.arange(count),
    }
    calls = _many(frames.api_calls(ONE), thread=thread[::8], **launch)
    kernels = _many(frames.kernels(ONE), gpu=thread[::8], **launch)
    return KERNELS.make(kernels), API_CALLS.make(calls), RANGES.make(ranges)


def _many(one: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Return a row again and again, with columns of its own."""
    return (
        one.take(np.zeros(len(columns["process"]), np.int64))
        .reset_index(drop=True)
        .assign(**columns)
    )


def _least(question: Answer, *, times: int = TIMES) -> tuple[float, int]:
    """Return the CPU seconds of a question, the least of some times, and the process's peak while it answers."""
    forget = Path("/proc/self/clear_refs")
    if forget.exists():
        forget.write_text("5")  # the peak begins anew
    return min(fresh.timed(question).cpu_s for _ in range(times)), fresh.peak_bytes()
