"""Idle gaps: where they are, what they waited for, and their sums; by hand and against a search by ns."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import span, us
from frames import api_calls, copies, kernels, lasting, os_calls, ranges

from perfkit.analysis import causes
from perfkit.analysis.causes import PARTS, determinable
from perfkit.analysis.gaps import histogram, idle_by_cause, idle_gaps, longest
from perfkit.analysis.timeline import breakdown
from perfkit.tables import API_CALLS, COPIES

US = 1_000


def found_us(gaps: pd.DataFrame) -> list[tuple[Any, ...]]:
    """GPU, start, length and cause of the gaps, us."""
    return list(
        zip(gaps["gpu"], gaps["start_ns"] / US, gaps["dur_ns"] / US, gaps["cause"], strict=True)
    )


def parts_us(gap: pd.Series) -> dict[str, float]:
    return {part.removesuffix("_ns"): gap[part] / US for part in PARTS if gap[part]}


def test_a_gap_is_divided_at_its_launch_call() -> None:
    # Code before the call, the call of 4 us, and what follows, which is other from 30 us on.
    for launch_us, start_us, cause, parts in (
        (97, 120, "kernel_wait", {"launch": 1, "kernel_wait": 19}),
        (100, 133, "kernel_wait", {"launch": 4, "kernel_wait": 29}),
        (100, 134, "other", {"launch": 4, "other": 30}),
    ):
        work = kernels(us(0, 100), us(start_us, start_us + 5, 7))
        gap = idle_gaps(work, COPIES.empty(), api_calls(us(launch_us, launch_us + 4, 7))).loc[0]
        assert (cause, (start_us - 100) * US, 100 * US) == (
            gap["cause"],
            gap["dur_ns"],
            gap["start_ns"],
        )
        assert parts == parts_us(gap)


def test_waits_of_one_kind_have_one_cause() -> None:
    # Waits of 25, 33 and 44 us are of one kind, usually 33 us.
    work = kernels(us(0, 100), us(129, 200, 7), us(237, 300, 8), us(348, 400, 9))
    calls = api_calls(us(100, 104, 7), us(200, 204, 8), us(300, 304, 9))
    gaps = idle_gaps(work, COPIES.empty(), calls)
    assert ["other"] * 3 == gaps["cause"].tolist()
    assert [25, 33, 44] == (gaps["other_ns"] / US).tolist()


def test_a_wait_unlike_those_of_its_kind_keeps_its_own_cause() -> None:
    # Two waits of 44 us, and one of 5 us after the same call.
    work = kernels(us(0, 100), us(148, 200, 7), us(248, 300, 8), us(309, 400, 9))
    calls = api_calls(us(100, 104, 7), us(200, 204, 8), us(300, 304, 9))
    gaps = idle_gaps(work, COPIES.empty(), calls)
    assert ["other", "other", "kernel_wait"] == gaps["cause"].tolist()


def test_a_page_of_unified_memory_ends_a_gap_in_which_the_host_worked() -> None:
    # No call launches a page: what the thread of the last call before the gap did until then is the cause. Another
    # process's later call decides nothing, and a page before any call is unattributed.
    page = {"src_memory": "managed", "dst_memory": "managed", "direction": "D2H"}
    pages = copies(us(160, 165, **page), us(30, 35, **page))
    calls = api_calls(us(36, 38, 3), us(90, 91, 9, process=2))
    work = kernels(us(0, 20), us(40, 100, 3))
    gaps = idle_gaps(work, pages, calls, os_calls=os_calls(us(110, 150, name="pwrite64")))
    assert ["unattributed", "host_wait", "host_wait"] == gaps["cause"].tolist()
    assert (0, 100, 60, "host_wait") == found_us(gaps)[2]
    assert {"system": 40, "host_code": 20} == parts_us(gaps.loc[2])
    assert [True, False] == [
        determinable(work.tail(1), pages, calls, pages=but).yes for but in (False, True)
    ]


def test_the_parts_of_a_gap_count_for_their_own_causes() -> None:
    # Gaps of 110 and 50 us: 90 + 20 us of code, 4 + 4 in the launch calls, 16 + 26 before the kernels begin.
    work = kernels(us(0, 100), us(210, 300, 7), us(350, 360, 8))
    calls = api_calls(us(190, 194, 7), us(320, 324, 8))
    by_cause = idle_by_cause(idle_gaps(work, COPIES.empty(), calls, window=(0, 370 * US)))
    expected = {
        "host_code": (2, 110, 90),
        "kernel_wait": (2, 42, 26),
        "edge": (1, 10, 10),
        "launch": (2, 8, 4),
    }
    name = by_cause["detail"].astype(object).fillna(by_cause["cause"].astype(object))
    figures = zip(
        by_cause["count"], by_cause["total_ns"] // US, by_cause["max_ns"] // US, strict=True
    )
    assert expected == dict(zip(name, figures, strict=True))
    assert [110 / 170, 42 / 170, 10 / 170, 8 / 170] == pytest.approx(
        by_cause["share_frac"].tolist()
    )


def test_causes_are_determinable_up_to_a_fifth_without_call() -> None:
    calls = api_calls(*(us(c, c + 1, c) for c in range(4)))
    work, one = kernels(*(us(10 + c, 11 + c, c) for c in range(5))), us(10, 11, 1)
    graph = api_calls(us(0, 1, 1), us(2, 3, 2, name="cudaGraphLaunch"))
    nodes = kernels(one, us(12, 13, 2, in_graph=True), us(13, 14, 2, in_graph=True))
    for tables, why in (
        ((work, copies(), calls), None),
        ((nodes, copies(), graph), None),
        ((work, copies(us(90, 91)), calls), "2 of 6 operations have no launch call"),
        ((kernels(one), copies(), graph), "1 of 1 graph launches have no operation"),
        ((kernels(), copies(), calls), "the capture holds no operation of a GPU"),
    ):
        answer = determinable(*tables)
        assert answer.yes if why is None else (False, why) == (answer.yes, answer.why)


def test_the_longest_gaps_in_their_order() -> None:
    ends = [
        (0, 10),
        (15, 20),
        (50, 60),
        (80, 90),
        (120, 130),
        (150, 160),
    ]  # gaps of 5, 30, 20, 30, 20
    tables = kernels(*(us(*times) for times in ends)), COPIES.empty(), API_CALLS.empty()
    gaps = idle_gaps(*tables)
    assert [5, 4, 0] == [len(idle_gaps(*tables, at_least_ns=least * US)) for least in (5, 6, 31)]
    assert [1, 3, 2] == longest(gaps, 3).index.tolist()
    pd.testing.assert_frame_equal(
        gaps.sort_values("dur_ns", ascending=False, kind="stable"), longest(gaps, 9)
    )
    with pytest.raises(ValueError, match="at_least_ns: -1 is negative"):
        idle_gaps(*tables, at_least_ns=-1)


def test_a_device_that_ends_before_the_window_idles_at_an_edge() -> None:
    work = kernels(us(100, 200), us(0, 50, gpu=1))
    gaps = idle_gaps(work, COPIES.empty(), API_CALLS.empty(), window=(100 * US, 200 * US))
    assert [(1, 100, 100, "edge")] == found_us(gaps)


def cut_gap(first_us: int, last_us: int) -> pd.Series:
    """A gap from 100 to 210 us that data loading fills but for the launch from 190 to 194 us, seen in a window."""
    work = kernels(us(0, 100), us(210, 300, 7))
    loading = ranges(us(100, 180, name="data loading"))
    window = (first_us * US, last_us * US)
    return idle_gaps(
        work, COPIES.empty(), api_calls(us(190, 194, 7)), ranges=loading, window=window
    ).loc[0]


def test_a_gap_at_the_edge_of_a_window_keeps_its_cause() -> None:
    assert "data_loading" == cut_gap(150, 230)["detail"]
    assert "data_loading" == cut_gap(50, 120)["detail"]


def test_a_window_inside_a_gap_has_the_cause_of_the_gap() -> None:
    assert {"data_loading": 20.0} == parts_us(cut_gap(110, 130))


def test_the_parts_of_a_gap_are_cut_at_the_window() -> None:
    assert {"data_loading": 30.0, "host_code": 10.0, "launch": 2.0} == parts_us(cut_gap(150, 192))


def test_what_follows_the_launch_keeps_its_kind_in_a_window() -> None:
    work = kernels(us(0, 100), us(210, 300, 7))
    gap = idle_gaps(
        work, COPIES.empty(), api_calls(us(120, 124, 7)), window=(200 * US, 230 * US)
    ).loc[0]
    assert {"other": 10.0} == parts_us(gap)


def test_the_shortest_gap_to_return_is_meant_of_what_lies_in_the_window() -> None:
    work = kernels(us(0, 100), us(210, 300, 7))
    tables = work, COPIES.empty(), API_CALLS.empty()
    assert 0 == len(idle_gaps(*tables, at_least_ns=11 * US, window=(200 * US, 230 * US)))


CALLS = {
    causes.is_launch: "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernelEx cudaLaunchCooperativeKernel"
    " cudaGraphLaunch cudaGraphLaunch_ptsz cudaMemcpy cudaMemcpyAsync_ptds cuMemcpyHtoDAsync_v2 cudaMemset2DAsync"
    " cuMemsetD32Async hipModuleLaunchKernel hipMemcpyAsync",
    causes.is_graph_launch: "cudaGraphLaunch cuGraphLaunch cudaGraphLaunch_v10000 hipGraphLaunch",
    causes.is_sync: "cudaDeviceSynchronize cudaStreamSynchronize_ptsz cudaEventSynchronize cuCtxSynchronize"
    " cuStreamSynchronize cuEventSynchronize cudaMemcpy cudaMemcpyToSymbol cuMemcpyDtoH_v2 hipDeviceSynchronize",
    causes.is_memory: "cudaMalloc cudaMallocHost cudaMallocAsync cudaFree cudaFreeHost cudaHostAlloc cuMemAlloc_v2"
    " cuMemMap cuMemHostRegister hipMalloc hipHostMalloc",
}
OTHERS = (
    "cudaEventQuery cudaStreamWaitEvent cudaGraphInstantiate cudaStreamIsCapturing cudaMemGetInfo cuMemGetInfo_v2"
    " cudaMemPrefetchAsync cudaFuncGetAttributes cudaLaunchHostFunc cuKernelGetAttribute"
)


def test_calls_are_told_by_name() -> None:
    for fulfils, names in CALLS.items():
        assert [n for n in names.split() if not fulfils(n)] == []
        assert [n for n in OTHERS.split() if fulfils(n)] == []
    assert all(causes.is_launch(name) for name in causes.LAUNCH_CALLS)
    copies = "cudaMemcpyAsync", "cudaMemcpy2DAsync", "cuMemcpyDtoDAsync_v2", "cudaMemset"
    assert not any(map(causes.is_sync, copies))


def test_of_what_starts_at_once_the_longer_comes_first_and_what_is_empty_is_left_out() -> None:
    start, end = np.array([5, 8, 5, 0, 7]), np.array([6, 9, 9, 3, 7])
    found = causes.placed(start, end)
    assert ([0, 5, 5, 8], [3, 2, 0, 1]) == (found.start.tolist(), found.row.tolist())


def test_negative_ids_never_match() -> None:
    ids = [
        {"correlation": of, "process": process}
        for of, process in ((-1, 1), (3, 1), (-1, 2), (-2, 2))
    ]
    work, calls = ([span(n, n + 1, **each) for n, each in enumerate(ids)] for _ in range(2))
    assert [-1, 1, -1, -1] == causes.started_by(kernels(*work), api_calls(*calls)).tolist()


END = 400_000
NAMES = [
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaMemcpy",
    "cuStreamSynchronize",
    "cudaMalloc",
    "cudaEventQuery",
]
LABELS = ["DataLoader", "forward", "backward", "next batch", "step", "MPI_Allreduce"]
SYSTEM = ["read", "poll", "pthread_mutex_lock"]


def nested(rng: np.random.Generator, low: int, high: int, depth: int) -> list[tuple[int, int]]:
    """Intervals inside [low, high), that nest to the given depth."""
    edges = np.sort(
        rng.choice(
            np.arange(low, high), size=min(2 * int(rng.integers(1, 6)), high - low), replace=False
        )
    )
    found = []
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=False):
        found.append((start, end - start))
        if depth > 1 and end - start > 20:
            found += nested(rng, start, end, depth - 1)
    return found


def on_threads(rng: np.random.Generator, depth: int, names: list[str]) -> pd.DataFrame:
    """Nested spans on two threads of each of two processes in each of two ranks."""
    spans = [
        lasting(start, dur, rank=rank, process=process, thread=thread)
        for rank in (0, 1)
        for process in (3, 4)
        for thread in (1, 2)
        for start, dur in nested(rng, 0, END, depth)
    ]
    return pd.DataFrame(spans).assign(name=rng.choice(names, len(spans)))


def operations(rng: np.random.Generator, calls: pd.DataFrame, count: int) -> pd.DataFrame:
    """Operations of two ranks with two devices, most of them launched by a call, some starting together."""
    of = calls.iloc[rng.integers(0, len(calls), count)].reset_index(drop=True)
    start = np.minimum(of["start_ns"] + rng.integers(-2_000, 90_000, count), END - 10).clip(lower=0)
    again = rng.random(count) < 0.2
    start[again] = rng.choice(start, int(again.sum()))
    where = of[["rank", "process"]].assign(gpu=rng.integers(0, 2, count), stream=7)
    correlation = np.where(rng.random(count) < 0.2, 10_000, of["correlation"])
    return where.assign(
        start_ns=start, dur_ns=rng.integers(0, 9_000, count), correlation=correlation
    )


def tables(
    seed: int,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """KERNELS, COPIES, API_CALLS, RANGES and OS_CALLS made up at random."""
    rng = np.random.default_rng(seed)
    calls = on_threads(rng, 3, NAMES)
    calls["correlation"] = calls.groupby(["rank", "process"]).cumcount()
    work, moved = (operations(rng, calls, count).to_dict("records") for count in (120, 40))
    spans, system = on_threads(rng, 4, LABELS), on_threads(rng, 2, SYSTEM)
    made = ranges(*spans.to_dict("records")), os_calls(*system.to_dict("records"))
    return kernels(*work), copies(*moved), api_calls(*calls.to_dict("records")), *made


def test_the_detail_that_counts_first_has_the_time_of_what_lies_over_it() -> None:
    """The thread is in ranges and calls from 10 us on, each of which lies over the ones before it.

    Of a gap of 100 us it runs code for 10, reads for 10, is in MPI, loads data, asks for an event,
    allocates, launches something else and waits for 10 each, and launches what comes next for the last 20.
    """
    work = kernels(us(0, 100), us(200, 300, 7), us(400, 410, 9))
    system = os_calls(us(110, 180, name="read"), us(150, 160, name="poll", process=2))
    names = "MPI_Allreduce", "DataLoader"
    inner = ranges(*(us(120 + 10 * i, 180, name=name, depth=i) for i, name in enumerate(names)))
    names = "cudaEventQuery", "cudaMalloc", "cudaLaunchKernel", "cuStreamSynchronize"
    called = [us(140 + 10 * i, 180, name=name) for i, name in enumerate(names)]
    calls = api_calls(*called, us(180, 200, 7), us(150, 160, thread=2))
    gaps = idle_gaps(work, COPIES.empty(), calls, ranges=inner, os_calls=system)
    details = dict.fromkeys(("host_code", "system", "mpi", "data_loading", "cuda_call"), 10)
    expected = details | {"memory": 10, "launch": 30, "sync": 10}
    assert expected == parts_us(gaps.loc[0])
    columns = ["launch", "api", "range", "before_ns", "inside_ns"]
    found = gaps.loc[0, columns].tolist()
    assert ["cudaLaunchKernel", "cudaEventQuery", "DataLoader", 80 * US, 20 * US] == found
    assert ["unattributed", 100 * US, 0] == gaps.loc[
        1, ["cause", "before_ns", "inside_ns"]
    ].tolist()


@pytest.mark.parametrize("window", [None, (50_000, 350_000)])
def test_gaps_add_up_to_the_idle_part_of_the_timeline(window: tuple[int, int] | None) -> None:
    kernels, copies, calls, spans, system = tables(11)
    gaps = idle_gaps(kernels, copies, calls, ranges=spans, os_calls=system, window=window)
    idle = breakdown(kernels, copies, window=window).set_index(["rank", "gpu"])["idle_ns"]
    assert idle.to_dict() == gaps.groupby(["rank", "gpu"])["dur_ns"].sum().to_dict()
    by_cause = idle_by_cause(gaps)
    assert gaps["dur_ns"].sum() == by_cause["total_ns"].sum() == histogram(gaps)["total_ns"].sum()
    assert by_cause.groupby(["rank", "gpu"])["share_frac"].sum().tolist() == pytest.approx(
        [1.0] * 4
    )


def test_gaps_before_the_first_and_after_the_last_operation_of_steps_have_causes() -> None:
    # A step of 200 us prepares for 100 us, launches, waits until 130 us, and goes on alone.
    work = kernels(us(103, 120, 7))
    calls = api_calls(us(100, 102, 7), us(120, 130, name="cudaDeviceSynchronize"))
    window = {0: (0, 200 * US)}
    gaps = idle_gaps(work, COPIES.empty(), calls, window=window, stepped=[0])
    assert [(0, 0, 103, "host_wait"), (0, 120, 80, "host_wait")] == found_us(gaps)
    assert ["host_code", "host_code"] == gaps["detail"].tolist()
    assert {"host_code": 100, "launch": 2, "kernel_wait": 1} == parts_us(gaps.loc[0])
    assert 70 == parts_us(gaps.loc[1])["host_code"]
    edges = idle_gaps(work, COPIES.empty(), calls, window=window)
    assert ["edge", "edge"] == edges["cause"].tolist()
