"""What CUDA calls do, which call started an operation, and what a thread did between two times."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, kernels

from perfkit.analysis.causes import (
    Axis,
    Placed,
    covered,
    innermost,
    is_graph_launch,
    is_launch,
    is_memory,
    is_sync,
    longest,
    members,
    numbered_together,
    placed,
    started_by,
    where,
)
from perfkit.analysis.intervals import union
from perfkit.errors import PerfkitError

CALLS = {
    is_launch: "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernelEx cudaLaunchCooperativeKernel cudaGraphLaunch"
    " cudaGraphLaunch_ptsz cudaMemcpy cudaMemcpyAsync_ptds cuMemcpyHtoDAsync_v2 cudaMemset2DAsync cuMemsetD32Async"
    " hipModuleLaunchKernel hipMemcpyAsync",
    is_graph_launch: "cudaGraphLaunch cuGraphLaunch cudaGraphLaunch_v10000 hipGraphLaunch",
    is_sync: "cudaDeviceSynchronize cudaStreamSynchronize_ptsz cudaEventSynchronize cuCtxSynchronize"
    " cuStreamSynchronize cuEventSynchronize cudaMemcpy cudaMemcpyToSymbol cuMemcpyDtoH_v2 hipDeviceSynchronize",
    is_memory: "cudaMalloc cudaMallocHost cudaMallocAsync cudaFree cudaFreeHost cudaHostAlloc cuMemAlloc_v2 cuMemMap"
    " cuMemHostRegister hipMalloc hipHostMalloc",
}
OTHERS = (
    "cudaEventQuery cudaStreamWaitEvent cudaGraphInstantiate cudaStreamIsCapturing cudaMemGetInfo cuMemGetInfo_v2"
    " cudaMemPrefetchAsync cudaFuncGetAttributes cudaLaunchHostFunc cuKernelGetAttribute"
)


@pytest.mark.parametrize("fulfils", CALLS)
def test_calls_are_told_by_name(fulfils: Callable[[str], bool]) -> None:
    """Runtime, driver and HIP names belong, with suffixes too; queries and graph building belong nowhere."""
    assert [n for n in CALLS[fulfils].split() if not fulfils(n)] == []
    assert [n for n in OTHERS.split() if fulfils(n)] == []


def test_asynchronous_copies_do_not_synchronise() -> None:
    """Async anywhere in the name of a copy means that the call does not wait."""
    # A million rows of two names cost two questions; a missing name fulfils nothing.
    assert not any(is_sync(n) for n in ("cudaMemcpyAsync", "cudaMemcpy2DAsync", "cuMemcpyDtoDAsync_v2", "cudaMemset"))
    asked: list[str] = []
    names = pd.Series(pd.Categorical.from_codes([0, 1, -1] * 4, pd.Index(["cudaFree", "x"])))
    fulfilled = where(names, lambda name: asked.append(name) or name == "cudaFree")
    assert fulfilled.tolist() == [True, False, False] * 4
    assert asked == ["cudaFree", "x"]


def test_numbers_ascend_over_all_frames() -> None:
    """The pairs (1, 5), (1, 7), (2, 0) are 0, 1, 2 wherever they stand."""
    frames = [pd.DataFrame({"a": [2, 1], "b": [0, 7]}), pd.DataFrame({"a": [1, 2, 1], "b": [5, 0, 7]})]
    assert [numbers.tolist() for numbers in numbered_together(frames, ["a", "b"])] == [[2, 1], [0, 2, 1]]
    assert [n.tolist() for n in numbered_together([frame.iloc[:0] for frame in frames], ["a", "b"])] == [[], []]


def row(correlation: int, process: int = 1, rank: int = 0, start_ns: int = 0) -> dict[str, int]:
    """One operation or call; tables keep the order in which these are written."""
    return {"start_ns": start_ns, "dur_ns": 1, "correlation": correlation, "process": process, "rank": rank}


def test_negative_ids_never_match() -> None:
    """-1 means none, on both sides, and never reaches into a neighbouring process; nothing joins nothing."""
    calls = api_calls(row(-1), row(3), row(-1, process=2), row(-2, process=2))
    work = kernels(row(-1), row(-1, process=2), row(-2, process=2), row(3))
    assert [-1, -1, -1, 1] == started_by(work, calls).tolist()
    assert [[-1], []] == [
        started_by(kernels(*of), api_calls(*by)).tolist() for of, by in (([row(1)], []), ([], [row(1)]))
    ]


@pytest.mark.parametrize("most", [10**6, 2**62 - 2])
def test_join_equals_a_dictionary(most: int) -> None:
    """Random ids, small or too large to be packed with the process, find what a dictionary finds."""
    rng = np.random.default_rng(3)
    keys = ["rank", "process", "correlation"]

    def rows(count: int) -> list[dict[str, int]]:
        ids = np.append(rng.integers(most - 100, most, count), most)
        return [row(int(i), int(rng.integers(0, 3)), int(rng.integers(0, 2))) for i in ids]

    calls, work = api_calls(*rows(400)), kernels(*rows(200))
    first: dict[tuple[int, ...], int] = {}
    for place, key in enumerate(calls[keys].itertuples(index=False, name=None)):
        first.setdefault(key, place)
    expected = [first.get(key, -1) for key in work[keys].itertuples(index=False, name=None)]
    assert expected == started_by(work, calls).tolist()
    assert -1 in expected


def ints(*values: int) -> np.ndarray:
    """An int64 array."""
    return np.array(values, np.int64)


def test_axis_lays_groups_end_to_end() -> None:
    """Times 100..190 take 91 ns per group, so that group 1 begins at 91; three groups of 2**62 ns exceed int64."""
    axis = Axis.over(2, ints(100, 150), ints(190), ints())
    assert axis.at(ints(0, 0, 1), ints(100, 190, 100)).tolist() == [0, 90, 91]
    with pytest.raises(PerfkitError, match="3 threads or devices of 4611686018427387905 ns each do not fit"):
        Axis.over(3, ints(0, 2**62))


def test_placed_rows_are_in_order_with_the_longest_first() -> None:
    """Of rows that start together the longer comes first; empty rows are left out; rows keep their number."""
    # Members of runs of 2, 0 and 1 rows from 4, 9 and 0.
    got = placed(ints(5, 5, 7, 20), ints(7, 14, 7, 23))
    assert [a.tolist() for a in got] == [[5, 5, 20], [14, 7, 23], [1, 0, 3]]
    assert [a.tolist() for a in members(ints(4, 9, 0), ints(2, 0, 1))] == [[0, 0, 2], [4, 5, 0]]


def test_covered_equals_a_count_by_the_nanosecond() -> None:
    """Random sets and waits agree with marking every nanosecond; an empty set covers nothing."""
    rng = np.random.default_rng(1)
    start = rng.integers(0, 300, 40)
    cover = union(start, start + rng.integers(1, 6, 40))
    line = np.zeros(400, bool)
    for begin, end in zip(cover.start, cover.end, strict=True):
        line[begin:end] = True
    first = rng.integers(0, 300, 200)
    last = first + rng.integers(1, 100, 200)
    expected = [int(line[a:b].sum()) for a, b in zip(first, last, strict=True)]
    assert expected == covered(cover, first, last).tolist()
    assert covered(union(ints(), ints()), first, last).tolist() == [0] * 200


def test_longest_takes_the_earliest_of_equals_and_the_outer_of_nested() -> None:
    """In [0, 40) rows 3 and 5 cover 10 ns each: 3. In [50, 60) the inner row 8 covers as much as the outer 7: 7."""
    calls = Placed(ints(0, 30, 45, 50), ints(10, 40, 70, 65), ints(3, 5, 7, 8))
    assert longest(calls, ints(0, 50, 40, 10), ints(40, 60, 45, 30)).tolist() == [3, 7, -1, -1]


def test_innermost_needs_half() -> None:
    """Exactly half of [0, 20) is enough, one ns less is not; a range that is over by then may count too."""
    # Waits inside a parent of many short children are the parent's, and nobody's beyond it. Five thousand ranges that
    # all end with the capture nest five thousand deep: the last opened is the innermost.
    for start, end in ((0, 10), (10, 20)):
        assert innermost(Placed(ints(start), ints(end), ints(4)), ints(0, 0), ints(20, 21)).tolist() == [4, -1]
    start = ints(0, *range(0, 1000, 10))
    ranges = Placed(start, np.append(1000, start[1:] + 4), np.arange(101))
    assert innermost(ranges, ints(100, 101, 990), ints(300, 104, 1400)).tolist() == [0, 11, -1]
    ranges = Placed(np.arange(5_000), np.full(5_000, 10_000), np.arange(5_000))
    assert innermost(ranges, ints(0, 6_000), ints(100, 9_000)).tolist() == [50, 4_999]


@pytest.mark.parametrize("of", [longest, innermost])
def test_no_intervals_answer_nothing(of: Callable[..., np.ndarray]) -> None:
    """Without intervals every wait is without an answer, and without waits there is none."""
    none = Placed(ints(), ints(), ints())
    assert [[-1], []] == [of(none, ints(0), ints(5)).tolist(), of(none, ints(), ints()).tolist()]
