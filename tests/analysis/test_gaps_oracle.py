"""Idle gaps against a search nanosecond by nanosecond, and against the split of the timeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfkit.analysis.causes import DATA_LOADING, is_launch, is_memory, is_sync
from perfkit.analysis.gaps import GAPS, histogram, idle_by_cause, idle_gaps
from perfkit.analysis.timeline import breakdown
from perfkit.tables import API_CALLS, COPIES, KERNELS, RANGES

END = 400_000
NAMES = ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemcpy", "cuStreamSynchronize", "cudaMalloc", "cudaEventQuery"]
LABELS = ["DataLoader", "forward", "backward", "next batch", "step"]


def nested(rng: np.random.Generator, low: int, high: int, depth: int) -> list[tuple[int, int]]:
    """Intervals inside [low, high), that nest to the given depth."""
    edges = np.sort(rng.choice(np.arange(low, high), size=min(2 * int(rng.integers(1, 6)), high - low), replace=False))
    found = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=False):
        found.append((start, end - start))
        if depth > 1 and end - start > 20:
            found += nested(rng, start, end, depth - 1)
    return found


def on_threads(rng: np.random.Generator, depth: int, names: list[str]) -> pd.DataFrame:
    """Nested spans on two threads of each of two processes in each of two ranks."""
    spans = [
        {"rank": rank, "process": process, "thread": thread, "start_ns": start, "dur_ns": dur}
        for rank in (0, 1)
        for process in (3, 4)
        for thread in (1, 2)
        for start, dur in nested(rng, 0, END, depth)
    ]
    return pd.DataFrame(spans).assign(name=rng.choice(names, len(spans)))


def operations(rng: np.random.Generator, calls: pd.DataFrame, count: int) -> pd.DataFrame:
    """Operations of two ranks with two devices, most of them launched by a call, some starting together."""
    of = calls.iloc[rng.integers(0, len(calls), count)].reset_index(drop=True)
    start = np.minimum(of["start_ns"] + rng.integers(-2_000, 60_000, count), END - 10).clip(lower=0)
    again = rng.random(count) < 0.2
    start[again] = rng.choice(start, int(again.sum()))
    return pd.DataFrame(
        {
            "rank": of["rank"],
            "gpu": rng.integers(0, 2, count),
            "process": of["process"],
            "stream": 7,
            "start_ns": start,
            "dur_ns": rng.integers(0, 9_000, count),
            "correlation": np.where(rng.random(count) < 0.2, 10_000, of["correlation"]),
        }
    )


def tables(seed: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """KERNELS, COPIES, API_CALLS and RANGES made up at random."""
    rng = np.random.default_rng(seed)
    calls = on_threads(rng, 3, NAMES)
    calls["correlation"] = calls.groupby(["rank", "process"]).cumcount()
    kernels, copies = operations(rng, calls, 120), operations(rng, calls, 40)
    shape = {"grid_blocks": 1, "block_threads": 1, "registers": 1, "shared_bytes": 0, "in_graph": False}
    kernels = KERNELS.make(kernels.assign(name="k", full_name="k", family="other", **shape))
    place = {"bytes": 1, "src_memory": "pinned", "dst_memory": "device", "peer_gpu": -1}
    spans = on_threads(rng, 4, LABELS).assign(domain="", kind="push_pop", depth=0)
    return kernels, COPIES.make(copies.assign(direction="H2D", **place)), API_CALLS.make(calls), RANGES.make(spans)


def overlap(row: dict[str, Any], start: int, end: int) -> int:
    """Length of a row's span inside [start, end)."""
    return min(row["start_ns"] + row["dur_ns"], end) - max(row["start_ns"], start)


def explained(start: int, end: int, calls: list[dict[str, Any]], spans: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
    """Detail, call and range of the wait [start, end), from the calls and ranges of the thread."""
    detail = None
    sources = (calls, is_sync), (spans, DATA_LOADING.search), (calls, is_memory), (calls, is_launch)
    for name, (rows, fulfils) in zip(("sync", "data_loading", "memory", "launch"), sources, strict=True):
        inside = np.zeros(end - start, bool)
        for row in rows:
            if fulfils(row["name"]):
                inside[max(row["start_ns"] - start, 0) : max(row["start_ns"] + row["dur_ns"] - start, 0)] = True
        if detail is None and 2 * inside.sum() >= end - start:
            detail = name
    best = max(calls, key=lambda c: (overlap(c, start, end), -c["start_ns"]))
    half = [s for s in spans if 2 * overlap(s, start, end) >= end - start]
    return (
        detail or "host_code",
        best["name"] if overlap(best, start, end) > 0 else None,
        max(half, key=lambda s: s["start_ns"])["name"] if half else None,
    )


def searched(
    kernels: pd.DataFrame, copies: pd.DataFrame, calls: pd.DataFrame, spans: pd.DataFrame, window: tuple[int, int]
) -> list[tuple[Any, ...]]:
    """All gaps, found by marking every nanosecond of every device and looking at every call for each gap."""
    found: list[tuple[Any, ...]] = []
    work, called, named = (f.to_dict("records") for f in (pd.concat([kernels, copies]), calls, spans))
    for rank, gpu in sorted({(w["rank"], w["gpu"]) for w in work}):
        own = [w for w in work if (w["rank"], w["gpu"]) == (rank, gpu) and w["dur_ns"]]
        busy = np.zeros(window[1] - window[0] + 2, bool)
        busy[[0, -1]] = True
        for w in own:
            begin = w["start_ns"] - window[0]
            busy[max(begin + 1, 1) : min(max(begin + 1 + w["dur_ns"], 1), len(busy) - 1)] = True
        steps = np.flatnonzero(np.diff(busy.astype(int)))
        for start, end in (steps.reshape(-1, 2) + window[0]).tolist():
            after = [w for w in own if w["start_ns"] == end]
            keys = [(w["rank"], w["process"], w["correlation"]) for w in after]
            launch = next((c for c in called if (c["rank"], c["process"], c["correlation"]) in keys), None)
            cause, thread, why = "unattributed", -1, (None, None, None)
            if start == window[0] or end == window[1]:
                cause = "edge"
            elif launch:
                thread, late = launch["thread"], launch["start_ns"] > start
                cause = "host_wait" if late else "kernel_wait" if end - start < 30_000 else "other"
                keep = [[r for r in rows if all(r[k] == launch[k] for k in ("rank", "process", "thread"))]
                        for rows in (called, named)]  # fmt: skip
                why = explained(start, min(launch["start_ns"], end), *keep) if late else why
            found.append((rank, gpu, start, end - start, cause, *why, thread))
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", [(0, END), (90_123, 310_456)])
def test_gaps_equal_a_search_by_the_nanosecond(seed: int, window: tuple[int, int]) -> None:
    """Times, cause, detail, call, range and thread agree for every gap of random tables."""
    kernels, copies, calls, spans = tables(seed)
    gaps = GAPS.check(idle_gaps(kernels, copies, calls, ranges=spans, window=window))
    columns = ["rank", "gpu", "start_ns", "dur_ns", "cause", "detail", "api", "range", "thread"]
    rows = gaps[columns].astype(object).where(gaps[columns].notna(), None)
    assert searched(kernels, copies, calls, spans, window) == list(rows.itertuples(index=False, name=None))
    assert len(set(gaps["cause"])) >= 4


@pytest.mark.parametrize("window", [None, (50_000, 350_000)])
def test_gaps_add_up_to_the_idle_part_of_the_timeline(window: tuple[int, int] | None) -> None:
    """Per device the lengths sum to idle_ns of the split, and both summaries keep the sum."""
    kernels, copies, calls, spans = tables(11)
    gaps = idle_gaps(kernels, copies, calls, ranges=spans, window=window)
    idle = breakdown(kernels, copies, window=window).set_index(["rank", "gpu"])["idle_ns"]
    assert idle.to_dict() == gaps.groupby(["rank", "gpu"])["dur_ns"].sum().to_dict()
    assert gaps["dur_ns"].sum() == idle_by_cause(gaps)["total_ns"].sum() == histogram(gaps)["total_ns"].sum()
    assert idle_by_cause(gaps).groupby(["rank", "gpu"])["share_frac"].sum().tolist() == pytest.approx([1.0] * 4)


def test_a_later_start_of_the_capture_changes_starts_only() -> None:
    """Shifting every table by one hour shifts the gaps by one hour."""
    hour = 3_600_000_000_000
    plain = tables(5)
    later = [table.assign(start_ns=table["start_ns"] + hour) for table in plain]
    gaps, shifted = (idle_gaps(*t[:3], ranges=t[3]) for t in (plain, later))
    pd.testing.assert_frame_equal(gaps, shifted.assign(start_ns=shifted["start_ns"] - hour))


def test_inputs_stay_as_they_are() -> None:
    """None of the four tables is changed."""
    given, kept = tables(6), tables(6)
    idle_gaps(*given[:3], ranges=given[3], window=(1_000, 200_000))
    for table, copy in zip(given, kept, strict=True):
        pd.testing.assert_frame_equal(table, copy)
