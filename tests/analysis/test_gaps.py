"""Idle gaps: where they are, what they waited for, their sums; a search by nanosecond, and real captures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, copies, kernels, ranges
from real import WITH_KERNELS as CAPTURES

import perfkit
from perfkit.analysis.causes import CAUSES, DATA_LOADING, determinable, is_launch, is_memory, is_sync
from perfkit.analysis.gaps import GAPS, histogram, idle_by_cause, idle_gaps, longest
from perfkit.analysis.timeline import breakdown
from perfkit.tables import API_CALLS, COPIES, KERNELS, RANGES

US = 1_000


def kernel(start_us: int, end_us: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    """A kernel from start to end, us."""
    return {"start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, "correlation": correlation, **more}


def call(start_us: int, end_us: int, name: str, correlation: int = -1, **more: Any) -> dict[str, Any]:
    """A call, or a range, from start to end, us."""
    more = {"correlation": correlation, **more} if correlation >= 0 else more
    return {"start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, "name": name, **more}


def times_us(gaps: pd.DataFrame) -> list[tuple[int, int]]:
    """Start and length of the gaps, us."""
    return list(zip(gaps["start_ns"] // US, gaps["dur_ns"] // US, strict=True))


def gap_after_100(launch_us: int, start_us: int, *more: dict[str, Any], **named: pd.DataFrame) -> pd.Series:
    """The gap between a kernel that ends at 100 us and one launched and started later."""
    work = kernels(kernel(0, 100), kernel(start_us, start_us + 5, 7))
    calls = api_calls(call(launch_us, launch_us + 4, "cudaLaunchKernel", 7), *more)
    gaps = idle_gaps(work, COPIES.empty(), calls, **named)
    assert len(gaps) == 1
    return gaps.iloc[0]


@pytest.mark.parametrize(
    ("launch_us", "start_us", "cause"),
    [
        *((120, 150, "host_wait"), (90, 120, "kernel_wait"), (90, 150, "other"), (100, 129, "kernel_wait")),
        (90, 130, "other"),  # a gap of exactly the limit of 30 us
        # The call of 4 us returns 42, 45 or 50 us into a gap of 500: from a tenth on the host has to do with it.
        *((138, 600, "other"), (141, 600, "other"), (146, 600, "host_wait")),
    ],
)
def test_cause_follows_from_the_launch_call(launch_us: int, start_us: int, cause: str) -> None:
    """Device dry from 100 us: a call after that is a host wait; before it, 30 us part kernel wait and other."""
    gap = gap_after_100(launch_us, start_us)
    assert (cause, (start_us - 100) * US, 100 * US) == (gap["cause"], gap["dur_ns"], gap["start_ns"])


def test_a_call_that_lasts_as_long_as_the_gap_explains_it() -> None:
    """The launch begins 1 us into the gap and returns 499 us into it, as when it loads its module: a host wait."""
    work = kernels(kernel(0, 100), kernel(600, 605, 7))
    gaps = idle_gaps(work, COPIES.empty(), api_calls(call(101, 599, "cudaLaunchKernel", 7)))
    assert ["host_wait"] == gaps["cause"].tolist()


def test_gap_without_launch_call_is_unattributed() -> None:
    """An operation without a call of its process and rank leaves its gap without cause, process and thread."""
    work = kernels(kernel(0, 10), kernel(20, 30, 5))
    strangers = api_calls(
        call(12, 14, "cudaLaunchKernel", 5, process=2),
        call(12, 14, "cudaLaunchKernel", 5, rank=1),
        call(12, 14, "x", 6),
    )
    (gap,) = idle_gaps(work, COPIES.empty(), strangers).to_dict("records")
    assert (gap["cause"], gap["process"], gap["thread"]) == ("unattributed", -1, -1)
    assert pd.isna(gap["detail"])


def test_window_wider_than_the_operations_has_edges() -> None:
    """Operations over [10, 70) us in a window of 0..100 us leave edges of 10 and 30 us: 40 us idle."""
    work = kernels(kernel(10, 30), kernel(20, 40, stream=8), kernel(35, 60))
    gaps = idle_gaps(work, copies(kernel(55, 70)), API_CALLS.empty(), window=(0, 100 * US))
    assert times_us(gaps) == [(0, 10), (70, 30)]
    assert gaps["cause"].tolist() == ["edge", "edge"]


def test_without_window_there_are_no_edges() -> None:
    """The window is then the span of operations, which begins and ends with one."""
    gaps = idle_gaps(kernels(kernel(10, 30), kernel(50, 60)), COPIES.empty(), API_CALLS.empty())
    assert times_us(gaps) == [(30, 20)]
    assert gaps["cause"].tolist() == ["unattributed"]


def test_edge_before_the_first_operation_stays_an_edge_though_it_has_a_call() -> None:
    """What happened before the window is not known, so the edge has neither cause nor thread."""
    calls = api_calls(call(5, 8, "cudaLaunchKernel", 1))
    (gap,) = idle_gaps(kernels(kernel(10, 20, 1)), COPIES.empty(), calls, window=(0, 20 * US)).to_dict("records")
    assert (gap["cause"], gap["thread"]) == ("edge", -1)


def test_operations_are_cut_at_the_window() -> None:
    """Of [0, 40) and [60, 90) us, the window [20, 70) sees all but the gap [40, 60)."""
    work = kernels(kernel(0, 40), kernel(60, 90))
    assert times_us(idle_gaps(work, COPIES.empty(), API_CALLS.empty(), window=(20 * US, 70 * US))) == [(40, 20)]
    late = idle_gaps(work, COPIES.empty(), API_CALLS.empty(), window=(20 * US, 60 * US))
    assert (times_us(late), late["cause"].tolist()) == ([(40, 20)], ["edge"])


def test_device_idle_in_the_whole_window_is_one_edge() -> None:
    """GPU 1 works only before the window, which is then one gap of its full length."""
    work = kernels(kernel(100, 200), kernel(0, 50, gpu=1))
    gaps = idle_gaps(work, COPIES.empty(), API_CALLS.empty(), window=(100 * US, 200 * US))
    assert gaps[["gpu", "start_ns", "dur_ns", "cause"]].to_numpy().tolist() == [[1, 100 * US, 100 * US, "edge"]]


def test_devices_and_ranks_are_apart_but_processes_share_a_device() -> None:
    """A kernel of another process fills the gap of a device; one of another GPU or rank does not."""
    hole = [kernel(0, 10), kernel(30, 40)]
    filled = kernels(*hole, kernel(10, 30, process=9))
    apart = kernels(*hole, kernel(10, 30, gpu=1), kernel(10, 30, rank=1))
    assert idle_gaps(filled, COPIES.empty(), API_CALLS.empty()).empty
    gaps = idle_gaps(apart, COPIES.empty(), API_CALLS.empty())
    assert gaps[["rank", "gpu"]].to_numpy().tolist() == [[0, 0]]


def test_copies_and_memsets_end_gaps() -> None:
    """The gap before a memset belongs to the call of that memset."""
    calls = api_calls(call(15, 16, "cudaMemsetAsync", 3, thread=8))
    (gap,) = idle_gaps(kernels(kernel(0, 10)), copies(kernel(20, 30, 3, direction="memset")), calls).to_dict("records")
    assert (gap["cause"], gap["thread"]) == ("host_wait", 8)


def test_empty_operation_neither_ends_nor_splits_a_gap() -> None:
    """A copy of 0 ns inside a gap covers nothing."""
    gaps = idle_gaps(kernels(kernel(0, 10), kernel(30, 40)), copies(kernel(20, 20)), API_CALLS.empty())
    assert times_us(gaps) == [(10, 20)]


def test_of_operations_that_start_together_one_with_a_call_decides() -> None:
    """Three kernels end the gap: the first has no call, of the others the call first in the table counts."""
    work = kernels(kernel(0, 10), *(kernel(50, 60, c, stream=c) for c in (9, 3, 2)))
    calls = api_calls(call(20, 21, "cudaLaunchKernel", 2), call(25, 26, "cudaLaunchKernel", 3, thread=5))
    assert idle_gaps(work, COPIES.empty(), calls)["thread"].tolist() == [1]


WAIT: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], str]] = {
    "half is enough": ([call(100, 150, "cudaStreamSynchronize")], [], "sync"),
    "less than half": ([call(100, 149, "cudaStreamSynchronize")], [], "host_code"),
    "only after the gap began": ([call(0, 149, "cudaDeviceSynchronize")], [], "host_code"),
    "two make half": ([call(100, 125, "cuCtxSynchronize"), call(130, 155, "cudaEventSynchronize")], [], "sync"),
    "nested counts once": (
        [call(100, 140, "cudaDeviceSynchronize"), call(105, 135, "cuCtxSynchronize")],
        [],
        "host_code",
    ),
    "copy that blocks": ([call(90, 170, "cudaMemcpy")], [], "sync"),
    "copy that does not": ([call(90, 170, "cudaMemcpyAsync")], [], "launch"),
    "another thread": ([call(100, 200, "cudaDeviceSynchronize", thread=2)], [], "host_code"),
    "another process": ([call(100, 200, "cudaDeviceSynchronize", process=2)], [], "host_code"),
    "memory": ([call(100, 190, "cudaMalloc")], [], "memory"),
    "launches": ([call(t, t + 9, "cudaLaunchKernel") for t in range(100, 200, 10)], [], "launch"),
    "loading": ([], [call(50, 160, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")], "data_loading"),
    "loading, two words": ([], [call(100, 160, "Data loading")], "data_loading"),
    "loading elsewhere": ([], [call(100, 160, "Data loading", thread=2)], "host_code"),
    "other range": ([], [call(100, 200, "Batch 7")], "host_code"),
    "first match": ([call(120, 180, "cudaFree"), call(100, 160, "cudaStreamSynchronize")], [], "sync"),
    "loading before memory": ([call(100, 170, "cudaHostAlloc")], [call(100, 160, "next_batch")], "data_loading"),
}


@pytest.mark.parametrize("case", WAIT)
def test_detail_of_a_host_wait_is_what_covers_half_of_it(case: str) -> None:
    """The wait is [100, 200) us of the launching thread; its detail is the first class that covers 50 us."""
    calls, named, detail = WAIT[case]
    assert detail == gap_after_100(200, 210, *calls, ranges=ranges(*named))["detail"]


def test_api_is_the_call_that_covers_most_of_the_wait() -> None:
    """[100, 110) of the first call, [120, 140) of the second and nothing of the launch lie in the wait."""
    more = call(0, 110, "cudaMalloc"), call(120, 140, "cudaEventQuery")
    assert gap_after_100(200, 210, *more)["api"] == "cudaEventQuery"
    assert pd.isna(gap_after_100(200, 210)["api"])
    assert pd.isna(gap_after_100(90, 210, *more)["api"])


def test_range_is_the_innermost_over_half_of_the_wait() -> None:
    """Of nested ranges over 100, 60 and 40 us of a 100 us wait the second is innermost with at least half."""
    named = ranges(call(0, 300, "step"), call(120, 180, "load"), call(130, 170, "decode"), call(181, 190, "after"))
    assert gap_after_100(200, 210, ranges=named)["range"] == "load"
    assert pd.isna(gap_after_100(200, 210, ranges=ranges(call(100, 149, "short")))["range"])
    assert pd.isna(gap_after_100(200, 210)["range"])


def test_call_recorded_after_its_operation_began_cannot_prolong_the_wait() -> None:
    """With clocks that disagree the wait ends with the gap: [100, 120) us, of which the sync covers half."""
    assert gap_after_100(130, 120, call(100, 110, "cudaStreamSynchronize"))["detail"] == "sync"


def test_at_least_ns_keeps_the_longer_gaps() -> None:
    """Of gaps of 5, 10 and 20 us those of at least 10 us are returned."""
    work = kernels(kernel(0, 10), kernel(15, 20), kernel(30, 40), kernel(60, 70))
    gaps = idle_gaps(work, COPIES.empty(), API_CALLS.empty(), at_least_ns=10 * US)
    assert times_us(gaps) == [(20, 10), (40, 20)]


def test_a_negative_length_is_refused() -> None:
    """No gap is shorter than nothing."""
    with pytest.raises(ValueError, match="at_least_ns: -1 is negative"):
        idle_gaps(KERNELS.empty(), COPIES.empty(), API_CALLS.empty(), at_least_ns=-1)


def gaps_of(*rows: tuple[int, int, str]) -> pd.DataFrame:
    """GAPS with gpu, length and cause; gaps that wait for the host are details of sync."""
    frame = pd.DataFrame(rows, columns=["gpu", "dur_ns", "cause"])
    frame["detail"] = frame["cause"].map({"host_wait": "sync"})
    frame["cause"] = pd.Categorical(frame["cause"], CAUSES)
    return GAPS.make(frame.assign(rank=0, start_ns=range(len(frame)), api=None, range=None, process=1, thread=1))


def test_idle_by_cause_adds_up_per_device() -> None:
    """GPU 0 idles 30 + 10 ns for the host of 50 ns in all: 0.8; GPU 1 only waits for kernels: 1.0."""
    gaps = gaps_of((0, 30, "host_wait"), (0, 10, "host_wait"), (0, 10, "edge"), (1, 7, "kernel_wait"))
    found = idle_by_cause(gaps)
    expected = [[0, "host_wait", 2, 40, 30, 0.8], [0, "edge", 1, 10, 10, 0.2], [1, "kernel_wait", 1, 7, 7, 1.0]]
    assert expected == found.drop(columns=["rank", "detail"]).to_numpy().tolist()
    assert found["detail"].isna().tolist() == [False, True, True]


def test_histogram_has_edges_at_1_2_5() -> None:
    """Gaps of 2, 4, 30 and 50 ns lie in [2, 5), [2, 5), [20, 50) and [50, 100); [5, 10) and [10, 20) are empty."""
    found = histogram(gaps_of((0, 2, "other"), (0, 4, "edge"), (0, 50, "other"), (1, 30, "other")))
    expected = [
        [2, 5, "other", 1, 2],
        [2, 5, "edge", 1, 4],
        [5, 10, "other", 0, 0],
        [5, 10, "edge", 0, 0],
        [10, 20, "other", 0, 0],
        [10, 20, "edge", 0, 0],
        [20, 50, "other", 1, 30],
        [20, 50, "edge", 0, 0],
        [50, 100, "other", 1, 50],
        [50, 100, "edge", 0, 0],
    ]
    assert expected == found.to_numpy().tolist()


def test_causes_are_determinable_up_to_a_fifth_without_call() -> None:
    """1 of 5 operations without call is accepted, 2 of 6 are not, and the sentence says so."""
    calls = api_calls(*(call(c, c + 1, "cudaLaunchKernel", c) for c in range(4)))
    work = [kernel(10 + c, 11 + c, c) for c in range(5)]
    assert determinable(kernels(*work), COPIES.empty(), calls).yes
    lacking = determinable(kernels(*work), copies(kernel(90, 91)), calls)
    assert (lacking.yes, lacking.why) == (False, "2 of 6 operations have no launch call")


def test_graphs_without_operations_make_causes_undeterminable() -> None:
    """A graph launch whose kernels were not recorded leaves gaps that are none."""
    work, launch = kernels(kernel(10, 11, 1)), call(0, 1, "cudaLaunchKernel", 1)
    recorded = api_calls(launch, call(2, 3, "cudaGraphLaunch", 2))
    answer = determinable(work, COPIES.empty(), recorded)
    assert (answer.yes, answer.why) == (False, "1 of 1 graph launches have no operation")
    nodes = kernels(kernel(10, 11, 1), kernel(12, 13, 2, in_graph=True), kernel(13, 14, 2, in_graph=True))
    assert determinable(nodes, COPIES.empty(), recorded).yes


def test_capture_without_operations_has_no_causes() -> None:
    """Nothing ran on a GPU: there is nothing to determine."""
    answer = determinable(KERNELS.empty(), COPIES.empty(), api_calls(call(0, 1, "cudaLaunchKernel", 1)))
    assert (answer.yes, answer.why) == (False, "the capture holds no operation of a GPU")


def test_the_longest_gaps_in_their_order() -> None:
    """Of 5, 30, 20, 30 and 20 us the longest three: both of 30 as they follow each other, then the first of 20."""
    ends = [(0, 10), (15, 20), (50, 60), (80, 90), (120, 130), (150, 160)]
    gaps = idle_gaps(kernels(*(kernel(*times) for times in ends)), COPIES.empty(), API_CALLS.empty())
    assert [5, 30, 20, 30, 20] == (gaps["dur_ns"] // US).tolist()
    assert [1, 3, 2] == longest(gaps, 3).index.tolist()
    whole = gaps.sort_values("dur_ns", ascending=False, kind="stable")
    pd.testing.assert_frame_equal(whole, longest(gaps, 9))
    with pytest.raises(ValueError, match="most: 0 is not at least 1"):
        longest(gaps, 0)


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


LONGER_THAN_NS = {"gt_10us": 10_000, "gt_100us": 100_000, "gt_1ms": 1_000_000}


def gaps_in(capture: Path) -> pd.DataFrame:
    """All gaps of a capture, with ranges."""
    run = perfkit.load(capture)
    return GAPS.check(idle_gaps(run.kernels, run.copies, run.api_calls, ranges=run.ranges))


def truth_of(profiles: Path, capture: str) -> dict[int, dict[str, Any]]:
    """Reference values per device."""
    path = profiles / "golden" / "nsys" / f"{capture.removesuffix('.sqlite')}.truth.json"
    return {int(gpu): of for gpu, of in json.loads(path.read_text())["devices"].items()}


@pytest.mark.parametrize("capture", CAPTURES)
def test_gaps_of_real_captures(profiles: Path, capture: str) -> None:
    """Idle time, count and length of the long gaps and the five longest equal an independent computation."""
    gaps, truth = gaps_in(profiles / "nsys" / capture), truth_of(profiles, capture)
    assert set(gaps["gpu"]) == set(truth)
    for gpu, expected in truth.items():
        own = gaps[gaps["gpu"] == gpu]
        assert expected["idle_in_span"] == own["dur_ns"].sum() == idle_by_cause(own)["total_ns"].sum()
        for name, limit in LONGER_THAN_NS.items():
            longer = own["dur_ns"][own["dur_ns"] > limit]
            assert expected["gaps"][name] == {"count": len(longer), "total": longer.sum()}
        longest = own.nlargest(5, "dur_ns")[["start_ns", "dur_ns"]].to_numpy().tolist()
        assert [[gap["start"], gap["duration"]] for gap in expected["longest_gaps"]] == longest


@pytest.mark.parametrize("capture", CAPTURES)
def test_gaps_that_nsight_systems_lists_are_found(profiles: Path, capture: str) -> None:
    """Every gap above 1 ms in the vendor's list is one of ours.

    Its list stops at 50 rows and counts the profiler's own overhead as busy, so that it may hold fewer; it looks
    at each process alone, which makes no difference in these captures: none has two processes on a device.
    """
    report = profiles / "golden" / "nsys" / capture.removesuffix(".sqlite") / "gpu_gaps_gap1.csv"
    if not report.exists():
        pytest.skip("the vendor's report is empty or fails on this capture")
    gaps = gaps_in(profiles / "nsys" / capture)
    ours = set(gaps[["gpu", "start_ns", "dur_ns"]].itertuples(index=False, name=None))
    vendor = pd.read_csv(report)[["Device ID", "Start (ns)", "Duration (ns)"]].itertuples(index=False, name=None)
    assert set(vendor) <= ours


def test_causes_of_a_training_run(profiles: Path) -> None:
    """The training job waits for its DataLoader 70 % of its idle time, and for evaluation on the CPU most of the rest.

    Its longest gap, 2.48 s, lies in the range "Test"; causes rest on complete calls.
    """
    run = perfkit.load(profiles / "nsys" / "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite")
    gaps = idle_gaps(run.kernels, run.copies, run.api_calls, ranges=run.ranges)
    first = idle_by_cause(gaps).iloc[0]
    assert (first["cause"], first["detail"], first["count"]) == ("host_wait", "data_loading", 58)
    assert pytest.approx(0.70, abs=0.005) == first["share_frac"]
    longest = gaps.loc[gaps["dur_ns"].idxmax()]
    assert (longest["range"], longest["detail"], longest["dur_ns"]) == ("Test", "host_code", 2_482_066_991)
    assert determinable(run.kernels, run.copies, run.api_calls).yes


def test_gaps_before_kernels_without_call_are_unattributed(profiles: Path) -> None:
    """24 kernels of this slice were launched before it began; their gaps have no cause, 55 us of 57 ms."""
    gaps = gaps_in(profiles / "nsys" / "GindaChen__nsys-ai__mfu_2gpu_before.sqlite")
    unknown = gaps[gaps["cause"] == "unattributed"]
    assert (len(unknown), unknown["dur_ns"].sum(), set(unknown["thread"])) == (29, 55_296, {-1})
