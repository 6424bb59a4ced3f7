"""Idle gaps: where they are, what they waited for, their sums; a search by nanosecond, and real captures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, copies, kernels, os_calls, ranges
from real import WITH_KERNELS as CAPTURES

import perfkit
from perfkit.analysis.causes import CAUSES, DETAILS, PARTS, determinable
from perfkit.analysis.gaps import GAPS, histogram, idle_by_cause, idle_gaps, longest
from perfkit.analysis.timeline import breakdown
from perfkit.tables import API_CALLS, COPIES, KERNELS, OS_CALLS, RANGES

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


def parts_us(gap: pd.Series) -> dict[str, float]:
    """The parts of a gap that are not 0, us, by their name."""
    return {part.removesuffix("_ns"): gap[part] / US for part in PARTS if gap[part]}


@pytest.mark.parametrize(
    ("launch_us", "start_us", "cause", "parts"),
    [
        # The gap begins at 100 us, and its launch call lasts 4 us: code before it, the call, and what follows.
        (190, 210, "host_wait", {"host_code": 90, "launch": 4, "kernel_wait": 16}),
        (120, 150, "kernel_wait", {"host_code": 20, "launch": 4, "kernel_wait": 26}),
        (97, 120, "kernel_wait", {"launch": 1, "kernel_wait": 19}),
        (90, 120, "kernel_wait", {"kernel_wait": 20}),
        (100, 133, "kernel_wait", {"launch": 4, "kernel_wait": 29}),
        (100, 134, "other", {"launch": 4, "other": 30}),  # exactly the limit of 30 us
        (90, 150, "other", {"other": 50}),
        (146, 600, "other", {"host_code": 46, "launch": 4, "other": 450}),
        (398, 600, "host_wait", {"host_code": 298, "launch": 4, "other": 198}),
    ],
)
def test_a_gap_is_divided_at_its_launch_call(launch_us: int, start_us: int, cause: str, parts: dict[str, int]) -> None:
    """Before the call and in it the host is waited for, after it the GPU; the largest part names the gap."""
    gap = gap_after_100(launch_us, start_us)
    assert (cause, (start_us - 100) * US, 100 * US) == (gap["cause"], gap["dur_ns"], gap["start_ns"])
    assert parts == parts_us(gap)


def test_a_call_that_lasts_as_long_as_the_gap_explains_it() -> None:
    """The launch begins 1 us into the gap and returns 499 us into it, as when it loads its module: the call itself."""
    work = kernels(kernel(0, 100), kernel(600, 605, 7))
    (gap,) = [
        row for _, row in idle_gaps(work, COPIES.empty(), api_calls(call(101, 599, "cudaLaunchKernel", 7))).iterrows()
    ]
    assert ("host_wait", "launch", "cudaLaunchKernel") == (gap["cause"], gap["detail"], gap["api"])
    assert {"host_code": 1, "launch": 498, "kernel_wait": 1} == parts_us(gap)


def test_a_copy_call_that_ends_the_gap_is_no_wait_for_the_gpu() -> None:
    """The copy begins 80 us after its call: the GPU is idle meanwhile, so the call cannot be waiting for it.

    What is inside that call, of whatever kind, is the same time once more.
    """
    inner = call(125, 135, "cuStreamSynchronize"), call(140, 150, "cuMemAlloc_v2")
    calls = api_calls(call(120, 230, "cudaMemcpy", 3), *inner)
    (gap,) = idle_gaps(kernels(kernel(0, 100)), copies(kernel(200, 210, 3)), calls).to_dict("records")
    assert (20, 80) == (gap["host_code_ns"] // US, gap["cuda_call_ns"] // US)
    assert ("cuda_call", "cudaMemcpy") == (gap["detail"], gap["api"])


def test_a_page_of_unified_memory_ends_a_gap_in_which_the_host_worked() -> None:
    """No call launches a page: what the thread of the last call before the gap did until then is the cause.

    Another process's later call decides nothing, and a page before any call is unattributed.
    """
    page = {"src_memory": "managed", "dst_memory": "managed", "direction": "D2H"}
    pages = copies(kernel(160, 165, **page), kernel(30, 35, **page))
    calls = api_calls(call(36, 38, "cudaLaunchKernel", 3), call(90, 91, "cudaLaunchKernel", 9, process=2))
    written = os_calls(call(110, 150, "pwrite64"))
    work = kernels(kernel(0, 20), kernel(40, 100, 3))
    gaps = idle_gaps(work, pages, calls, os_calls=written)
    assert ["unattributed", "host_wait", "host_wait"] == gaps["cause"].tolist()
    last = gaps.iloc[2]
    assert (100, 60, 40, 20) == tuple(last[c] // US for c in ("start_ns", "dur_ns", "system_ns", "host_code_ns"))
    assert determinable(work.tail(1), pages, calls).yes
    assert not determinable(work.tail(1), pages, calls, pages=True).yes


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
    assert [[0, 0]] == gaps.loc[gaps["cause"] != "edge", ["rank", "gpu"]].to_numpy().tolist()


def test_a_device_is_idle_while_another_one_of_its_rank_works() -> None:
    """GPU 0 of rank 0 works from 0 to 40 us, GPU 1 from 10 to 30: its edges last 10 us each; rank 1 is on its own."""
    ran = kernels(kernel(0, 40), kernel(10, 30, gpu=1), kernel(12, 20, rank=1))
    gaps = idle_gaps(ran, COPIES.empty(), API_CALLS.empty())
    assert {"edge"} == {*gaps["cause"]}
    assert [[0, 1], [0, 1]] == gaps[["rank", "gpu"]].to_numpy().tolist()
    assert [(0, 10), (30, 10)] == times_us(gaps)


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


WAIT: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]], str, dict[str, int]]] = {
    "nothing recorded": ([], [], [], "host_code", {"host_code": 100}),
    "half is the first": ([call(100, 150, "cudaStreamSynchronize")], [], [], "sync", {"sync": 50, "host_code": 50}),
    "less than half": (
        [call(100, 149, "cudaStreamSynchronize")], [], [], "host_code", {"sync": 49, "host_code": 51}
    ),
    "only after the gap began": (
        [call(0, 149, "cudaDeviceSynchronize")], [], [], "host_code", {"sync": 49, "host_code": 51}
    ),
    "two make half": (
        [call(100, 125, "cuCtxSynchronize"), call(130, 155, "cudaEventSynchronize")], [], [],
        "sync", {"sync": 50, "host_code": 50},
    ),
    "nested counts once": (
        [call(100, 140, "cudaDeviceSynchronize"), call(105, 135, "cuCtxSynchronize")], [], [],
        "host_code", {"sync": 40, "host_code": 60},
    ),
    "copy that blocks": ([call(90, 170, "cudaMemcpy")], [], [], "sync", {"sync": 70, "host_code": 30}),
    "copy that does not": ([call(90, 170, "cudaMemcpyAsync")], [], [], "launch", {"launch": 74, "host_code": 30}),
    "another thread": ([call(100, 200, "cudaDeviceSynchronize", thread=2)], [], [], "host_code", {"host_code": 100}),
    "another process": ([call(100, 200, "cudaDeviceSynchronize", process=2)], [], [], "host_code", {"host_code": 100}),
    "memory": ([call(100, 190, "cudaMalloc")], [], [], "memory", {"memory": 90, "host_code": 10}),
    "another call": ([call(110, 190, "cudaEventQuery")], [], [], "cuda_call", {"cuda_call": 80, "host_code": 20}),
    "launches": (
        [call(t, t + 9, "cudaLaunchKernel") for t in range(100, 200, 10)], [], [],
        "launch", {"launch": 94, "host_code": 10},
    ),
    "loading": (
        [], [call(50, 160, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")], [],
        "data_loading", {"data_loading": 60, "host_code": 40},
    ),
    "loading, two words": (
        [], [call(100, 160, "Data loading")], [], "data_loading", {"data_loading": 60, "host_code": 40}
    ),
    "loading elsewhere": ([], [call(100, 160, "Data loading", thread=2)], [], "host_code", {"host_code": 100}),
    "other range": ([], [call(100, 200, "Batch 7")], [], "host_code", {"host_code": 100}),
    "system": ([], [], [call(80, 180, "pthread_cond_wait")], "system", {"system": 80, "host_code": 20}),
    "system elsewhere": ([], [], [call(80, 180, "poll", thread=2)], "host_code", {"host_code": 100}),
    "sync before memory": (
        [call(120, 180, "cudaFree"), call(100, 160, "cudaStreamSynchronize")], [], [],
        "sync", {"sync": 60, "memory": 20, "host_code": 20},
    ),
    "memory before loading": (
        [call(100, 140, "cudaHostAlloc")], [call(100, 190, "next_batch")], [],
        "data_loading", {"memory": 40, "data_loading": 50, "host_code": 10},
    ),
    "loading before system": (
        [], [call(110, 160, "next_batch")], [call(100, 190, "read")],
        "data_loading", {"data_loading": 50, "system": 40, "host_code": 10},
    ),
    "a call before the system below it": (
        [call(100, 160, "cudaStreamSynchronize")], [], [call(105, 190, "poll")],
        "sync", {"sync": 60, "system": 30, "host_code": 10},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WAIT)
def test_a_wait_is_divided_by_what_the_thread_did(case: str) -> None:
    """The thread is watched over [100, 200) us, before its launch call; every microsecond counts once."""
    calls, named, system, detail, parts = WAIT[case]
    gap = gap_after_100(200, 210, *calls, ranges=ranges(*named), os_calls=os_calls(*system))
    assert ("host_wait", detail) == (gap["cause"], gap["detail"])
    assert {"launch": 4, **parts, "kernel_wait": 6} == parts_us(gap)


def test_api_is_the_call_that_covers_most_of_the_wait() -> None:
    """[100, 110) of the first call, [120, 140) of the second and 4 us of the launch lie in the wait.

    The wait lasts until the launch call returns, so that where no other call is recorded it is that call; one that
    returned before the gap covers nothing of it.
    """
    more = call(0, 110, "cudaMalloc"), call(120, 140, "cudaEventQuery")
    assert gap_after_100(200, 210, *more)["api"] == "cudaEventQuery"
    assert gap_after_100(200, 210)["api"] == "cudaLaunchKernel"
    assert pd.isna(gap_after_100(90, 210, *more)["api"])


def test_range_is_the_innermost_over_half_of_the_wait() -> None:
    """Of nested ranges over 104, 60 and 40 us of a 104 us wait the second is innermost with at least half."""
    named = ranges(call(0, 300, "step"), call(120, 180, "load"), call(130, 170, "decode"), call(181, 190, "after"))
    assert gap_after_100(200, 210, ranges=named)["range"] == "load"
    assert pd.isna(gap_after_100(200, 210, ranges=ranges(call(100, 149, "short")))["range"])
    assert pd.isna(gap_after_100(200, 210)["range"])


def test_call_recorded_after_its_operation_began_cannot_prolong_the_wait() -> None:
    """With clocks that disagree the wait ends with the gap: [100, 120) us, of which the sync covers half."""
    gap = gap_after_100(130, 120, call(100, 110, "cudaStreamSynchronize"))
    assert ("sync", {"sync": 10, "host_code": 10}) == (gap["detail"], parts_us(gap))


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
    """GAPS with gpu, length and cause, each of one part; gaps that wait for the host are details of sync."""
    frame = pd.DataFrame(rows, columns=["gpu", "dur_ns", "cause"])
    frame["detail"] = frame["cause"].map({"host_wait": "sync"})
    parts = {part: frame["dur_ns"].where(frame["detail"].fillna(frame["cause"]).eq(part[:-3]), 0) for part in PARTS}
    frame["cause"] = pd.Categorical(frame["cause"], CAUSES)
    more = {"api": None, "range": None, "process": 1, "thread": 1}
    return GAPS.make(frame.assign(rank=0, start_ns=range(len(frame)), **more, **parts))


def test_idle_by_cause_adds_up_per_device() -> None:
    """GPU 0 idles 30 + 10 ns for the host of 50 ns in all: 0.8; GPU 1 only waits for kernels: 1.0."""
    gaps = gaps_of((0, 30, "host_wait"), (0, 10, "host_wait"), (0, 10, "edge"), (1, 7, "kernel_wait"))
    by_cause = idle_by_cause(gaps)
    expected = [[0, "host_wait", 2, 40, 30, 0.8], [0, "edge", 1, 10, 10, 0.2], [1, "kernel_wait", 1, 7, 7, 1.0]]
    assert expected == by_cause.drop(columns=["rank", "detail"]).to_numpy().tolist()
    assert by_cause["detail"].isna().tolist() == [False, True, True]


def test_the_parts_of_a_gap_count_for_their_own_causes() -> None:
    """Two gaps of 110 and 50 us: 90 + 20 us of code, 4 + 4 in the launch calls, 16 + 26 before the kernels begin."""
    work = kernels(kernel(0, 100), kernel(210, 300, 7), kernel(350, 360, 8))
    calls = api_calls(call(190, 194, "cudaLaunchKernel", 7), call(320, 324, "cudaLaunchKernel", 8))
    by_cause = idle_by_cause(idle_gaps(work, COPIES.empty(), calls, window=(0, 370 * US)))
    expected = {"host_code": (2, 110, 90), "kernel_wait": (2, 42, 26), "edge": (1, 10, 10), "launch": (2, 8, 4)}
    name = by_cause["detail"].astype(object).fillna(by_cause["cause"].astype(object))
    figures = zip(by_cause["count"], by_cause["total_ns"] // US, by_cause["max_ns"] // US, strict=True)
    assert expected == dict(zip(name, figures, strict=True))
    assert [110 / 170, 42 / 170, 10 / 170, 8 / 170] == pytest.approx(by_cause["share_frac"].tolist())


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
LABELS = ["DataLoader", "forward", "backward", "next batch", "step", "MPI_Allreduce"]
SYSTEM = ["read", "poll", "pthread_mutex_lock"]
# What the definition calls the names above, written out: details of a wait from the last to the first that counts.
PAINTED = (
    ("system", SYSTEM),
    ("mpi", ["MPI_Allreduce"]),
    ("data_loading", ["DataLoader", "next batch"]),
    ("cuda_call", ["cudaEventQuery"]),
    ("memory", ["cudaMalloc"]),
    ("launch", ["cudaLaunchKernel", "cudaMemcpyAsync"]),
    ("sync", ["cudaMemcpy", "cuStreamSynchronize"]),
)


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


def tables(seed: int) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """KERNELS, COPIES, API_CALLS, RANGES and OS_CALLS made up at random."""
    rng = np.random.default_rng(seed)
    calls = on_threads(rng, 3, NAMES)
    calls["correlation"] = calls.groupby(["rank", "process"]).cumcount()
    kernels, copies = operations(rng, calls, 120), operations(rng, calls, 40)
    shape = {"grid_blocks": 1, "block_threads": 1, "registers": 1, "shared_bytes": 0, "in_graph": False}
    kernels = KERNELS.make(kernels.assign(name="k", full_name="k", family="other", **shape))
    place = {"bytes": 1, "src_memory": "pinned", "dst_memory": "device", "peer_gpu": -1}
    spans = on_threads(rng, 4, LABELS).assign(domain="", kind="push_pop", depth=0)
    copies = COPIES.make(copies.assign(direction="H2D", **place))
    return kernels, copies, API_CALLS.make(calls), RANGES.make(spans), OS_CALLS.make(on_threads(rng, 2, SYSTEM))


def overlap(row: dict[str, Any], start: int, end: int) -> int:
    """Length of a row's span inside [start, end)."""
    return min(row["start_ns"] + row["dur_ns"], end) - max(row["start_ns"], start)


def watched(thread: dict[str, Any], *frames: pd.DataFrame) -> list[str]:
    """What a thread does in every nanosecond of [0, END), by painting the spans that count first over the others."""
    rows = [row for frame in frames for row in frame.to_dict("records") if all(row[k] == thread[k] for k in thread)]
    at = ["host_code"] * END
    for detail, names in PAINTED:
        for row in rows:
            if row["name"] in names:
                at[row["start_ns"] : row["start_ns"] + row["dur_ns"]] = [detail] * row["dur_ns"]
    return at


def divided(start: int, end: int, launch: dict[str, Any], at: list[str]) -> Counter[str]:
    """How many ns of a gap each part has: every ns is looked at by itself."""
    called, returned = launch["start_ns"], launch["start_ns"] + launch["dur_ns"]
    after = "kernel_wait" if end - max(returned, start) < 30_000 else "other"
    own = "cuda_call" if "Memcpy" in launch["name"] else "launch"
    return Counter(after if ns >= returned else own if ns >= called else at[ns] for ns in range(start, end))


def named(start: int, end: int, calls: list[dict[str, Any]], spans: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Call and range of the wait [start, end), from the calls and ranges of the thread."""
    best = max(calls, key=lambda c: (overlap(c, start, end), -c["start_ns"]))
    half = [s for s in spans if 2 * overlap(s, start, end) >= end - start]
    return (
        best["name"] if overlap(best, start, end) > 0 else None,
        max(half, key=lambda s: s["start_ns"])["name"] if half else None,
    )


def searched(window: tuple[int, int], *tables: pd.DataFrame) -> list[dict[str, Any]]:
    """All gaps, found by marking every nanosecond of every device and looking at every call for each gap."""
    kernels, copies, calls, spans, system = tables
    gaps: list[dict[str, Any]] = []
    work, called, ranges = (f.to_dict("records") for f in (pd.concat([kernels, copies]), calls, spans))
    watch: dict[tuple[int, ...], list[str]] = {}
    for rank, gpu in sorted({(w["rank"], w["gpu"]) for w in work}):
        own = [w for w in work if (w["rank"], w["gpu"]) == (rank, gpu) and w["dur_ns"]]
        busy = np.zeros(window[1] - window[0] + 2, bool)
        busy[[0, -1]] = True
        for w in own:
            begin = w["start_ns"] - window[0]
            busy[max(begin + 1, 1) : min(max(begin + 1 + w["dur_ns"], 1), len(busy) - 1)] = True
        steps = np.flatnonzero(np.diff(busy.astype(int)))
        for start, end in (steps.reshape(-1, 2) + window[0]).tolist():
            gap = {"rank": rank, "gpu": gpu, "start_ns": start, "dur_ns": end - start, "cause": "unattributed"}
            gap |= {"detail": None, "api": None, "range": None, "thread": -1, **dict.fromkeys(PARTS, 0)}
            gaps.append(gap)
            if start == window[0] or end == window[1]:
                gap["cause"] = "edge"
                continue
            after = [w for w in own if w["start_ns"] == end]
            keys = [(w["rank"], w["process"], w["correlation"]) for w in after]
            launch = next((c for c in called if (c["rank"], c["process"], c["correlation"]) in keys), None)
            if launch is None:
                continue
            thread = {key: launch[key] for key in ("rank", "process", "thread")}
            place = tuple(thread.values())
            if place not in watch:
                watch[place] = watched(thread, calls, spans, system)
            parts = divided(start, end, launch, watch[place])
            most = max((*DETAILS, "kernel_wait", "other"), key=lambda name: parts[name])  # the first of equals
            gap |= {f"{part}_ns": ns for part, ns in parts.items()} | {"thread": launch["thread"]}
            gap |= {"cause": "host_wait", "detail": most} if most in DETAILS else {"cause": most}
            until = min(launch["start_ns"] + launch["dur_ns"], end)
            if until > start:
                same = [[r for r in rows if all(r[k] == thread[k] for k in thread)] for rows in (called, ranges)]
                gap["api"], gap["range"] = named(start, until, *same)
    return gaps


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", [(0, END), (90_123, 310_456)])
def test_gaps_equal_a_search_by_the_nanosecond(seed: int, window: tuple[int, int]) -> None:
    """Times, cause, parts, call, range and thread agree for every gap of random tables."""
    *work, spans, system = made = tables(seed)
    gaps = GAPS.check(idle_gaps(*work, ranges=spans, os_calls=system, window=window)).drop(columns="process")
    assert searched(window, *made) == gaps.astype(object).where(gaps.notna(), None).to_dict("records")
    assert len(set(gaps["cause"])) >= 4


def test_every_part_occurs_in_the_random_tables() -> None:
    """The search above sees each cause and each part, and the parts of a gap with a launch call are its length."""
    made = [tables(seed) for seed in range(4)]
    gaps = pd.concat([idle_gaps(*t[:3], ranges=t[3], os_calls=t[4], window=(0, END)) for t in made])
    assert set(CAUSES) == set(gaps["cause"])
    assert (gaps[[*PARTS]].sum() > 0).all()
    launched = ~gaps["cause"].isin(["unattributed", "edge"])
    assert gaps["dur_ns"].where(launched, 0).tolist() == gaps[[*PARTS]].sum(axis=1).tolist()


@pytest.mark.parametrize("window", [None, (50_000, 350_000)])
def test_gaps_add_up_to_the_idle_part_of_the_timeline(window: tuple[int, int] | None) -> None:
    """Per device the lengths sum to idle_ns of the split, and both summaries keep the sum."""
    kernels, copies, calls, spans, system = tables(11)
    gaps = idle_gaps(kernels, copies, calls, ranges=spans, os_calls=system, window=window)
    idle = breakdown(kernels, copies, window=window).set_index(["rank", "gpu"])["idle_ns"]
    assert idle.to_dict() == gaps.groupby(["rank", "gpu"])["dur_ns"].sum().to_dict()
    assert gaps["dur_ns"].sum() == idle_by_cause(gaps)["total_ns"].sum() == histogram(gaps)["total_ns"].sum()
    assert idle_by_cause(gaps).groupby(["rank", "gpu"])["share_frac"].sum().tolist() == pytest.approx([1.0] * 4)


LONGER_THAN_NS = {"gt_10us": 10_000, "gt_100us": 100_000, "gt_1ms": 1_000_000}


def gaps_in(capture: Path) -> pd.DataFrame:
    """All gaps of a capture, with ranges and calls of the operating system."""
    run = perfkit.load(capture)
    more = {"ranges": run.ranges, "os_calls": run.os_calls}
    return GAPS.check(idle_gaps(run.kernels, run.copies, run.api_calls, **more))


def truth_of(profiles: Path, capture: str) -> dict[int, dict[str, Any]]:
    """Reference values per device."""
    path = profiles / "golden" / "nsys" / f"{capture.removesuffix('.sqlite')}.truth.json"
    return {int(gpu): of for gpu, of in json.loads(path.read_text())["devices"].items()}


@pytest.mark.parametrize("capture", CAPTURES)
def test_gaps_of_real_captures(profiles: Path, capture: str) -> None:
    """Idle time, count and length of the long gaps and the five longest equal an independent computation."""
    gaps, truth = gaps_in(profiles / "nsys" / capture), truth_of(profiles, capture)
    assert set(gaps["gpu"]) == set(truth)
    first = min(of["first_op_start"] for of in truth.values())
    length = max(of["first_op_start"] + of["span"] for of in truth.values()) - first
    for gpu, expected in truth.items():
        edges = gaps["cause"].eq("edge")
        assert length - expected["span"] == gaps.loc[edges & gaps["gpu"].eq(gpu), "dur_ns"].sum()
        own = gaps[~edges & gaps["gpu"].eq(gpu)]
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

    58 gaps wait for the loader of the training, 42 ms for that of the evaluation. The evaluation is the longest gap,
    2.48 s in the range "Test": raw SQL over OSRT_API has its thread in two calls of poll() for 2,445,455,756 ns, of
    which the loader's ranges and CUDA calls take a little. Causes rest on complete calls.
    """
    run = perfkit.load(profiles / "nsys" / "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite")
    gaps = idle_gaps(run.kernels, run.copies, run.api_calls, ranges=run.ranges, os_calls=run.os_calls)
    first = idle_by_cause(gaps).iloc[0]
    assert (first["cause"], first["detail"], first["count"]) == ("host_wait", "data_loading", 58 + 1)
    assert pytest.approx(0.70, abs=0.005) == first["share_frac"]
    longest = gaps.loc[gaps["dur_ns"].idxmax()]
    assert (longest["range"], longest["detail"], longest["dur_ns"]) == ("Test", "system", 2_482_066_991)
    assert (42, 2_435) == (longest["data_loading_ns"] // 1_000_000, longest["system_ns"] // 1_000_000)
    assert determinable(run.kernels, run.copies, run.api_calls).yes


def test_gaps_before_kernels_without_call_are_unattributed(profiles: Path) -> None:
    """24 kernels of this slice were launched before it began; their gaps have no cause, 55 us of 57 ms."""
    gaps = gaps_in(profiles / "nsys" / "GindaChen__nsys-ai__mfu_2gpu_before.sqlite")
    unknown = gaps[gaps["cause"] == "unattributed"]
    assert (len(unknown), unknown["dur_ns"].sum(), set(unknown["thread"])) == (29, 55_296, {-1})


def test_pages_that_the_host_touches_explain_gaps(profiles: Path) -> None:
    """ICON by SQL: of 136.4 ms the GPU is idle for 69.8 ms while the thread is in pwrite64 and open64."""
    run = perfkit.load(profiles / "nsys" / "NTHU-SC__ISC25-ICON-C__gpu.sqlite")
    gaps = idle_gaps(run.kernels, run.copies, run.api_calls, os_calls=run.os_calls)
    assert gaps["system_ns"].sum() == pytest.approx(69.8e6, rel=0.001)
    assert not gaps["cause"].eq("unattributed").any()
