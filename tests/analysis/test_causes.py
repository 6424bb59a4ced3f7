"""What CUDA calls do, which call started an operation, and what a thread did between two times."""

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, kernels

from perfkit.analysis import causes
from perfkit.analysis.intervals import Axis
from perfkit.errors import PerfkitError

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
    # A million rows of two names cost two questions; a missing name fulfils nothing.
    asked: list[str] = []
    names = pd.Series(pd.Categorical.from_codes([0, 1, -1] * 4, pd.Index(["cudaFree", "x"])))
    fulfilled = causes.where(names, lambda name: asked.append(name) or name == "cudaFree")
    assert fulfilled.tolist() == [True, False, False] * 4
    assert asked == ["cudaFree", "x"]


def test_numbers_ascend_over_all_frames() -> None:
    frames = [pd.DataFrame({"a": [2, 1], "b": [0, 7]}), pd.DataFrame({"a": [1, 2, 1], "b": [5, 0, 7]})]
    assert [numbers.tolist() for numbers in causes.numbered_together(frames, ["a", "b"])] == [[2, 1], [0, 2, 1]]
    assert [n.tolist() for n in causes.numbered_together([frame.iloc[:0] for frame in frames], ["a", "b"])] == [[], []]


def row(correlation: int, process: int = 1, rank: int = 0, start_ns: int = 0) -> dict[str, int]:
    return {"start_ns": start_ns, "dur_ns": 1, "correlation": correlation, "process": process, "rank": rank}


def test_negative_ids_never_match() -> None:
    calls = api_calls(row(-1), row(3), row(-1, process=2), row(-2, process=2))
    work = kernels(row(-1), row(-1, process=2), row(-2, process=2), row(3))
    assert [-1, -1, -1, 1] == causes.started_by(work, calls).tolist()
    for of, by, found in (([row(1)], [], [-1]), ([], [row(1)], [])):
        assert found == causes.started_by(kernels(*of), api_calls(*by)).tolist()


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_axis_lays_groups_end_to_end() -> None:
    axis = Axis.over(2, ints(100, 150), ints(190), ints())
    assert axis.at(ints(0, 0, 1), ints(100, 190, 100)).tolist() == [0, 90, 91]
    with pytest.raises(PerfkitError, match="3 groups of 4611686018427387905 ns each do not fit"):
        Axis.over(3, ints(0, 2**62))
    # Placed rows are in order with the longest first; members of runs of 2, 0 and 1 rows from 4, 9 and 0.
    got = causes.placed(ints(5, 5, 7, 20), ints(7, 14, 7, 23))
    assert [a.tolist() for a in got] == [[5, 5, 20], [14, 7, 23], [1, 0, 3]]
    assert [a.tolist() for a in causes.members(ints(4, 9, 0), ints(2, 0, 1))] == [[0, 0, 2], [4, 5, 0]]


def test_longest_takes_the_earliest_of_equals_and_the_outer_of_nested() -> None:
    calls = causes.Placed(ints(0, 30, 45, 50), ints(10, 40, 70, 65), ints(3, 5, 7, 8))
    assert causes.longest(calls, ints(0, 50, 40, 10), ints(40, 60, 45, 30)).tolist() == [3, 7, -1, -1]
    none = causes.Placed(ints(), ints(), ints())
    for of in (causes.longest, causes.innermost):
        assert [[-1], []] == [of(none, ints(0), ints(5)).tolist(), of(none, ints(), ints()).tolist()]


def test_innermost_needs_half() -> None:
    for start, end in ((0, 10), (10, 20)):
        half = causes.Placed(ints(start), ints(end), ints(4))
        assert [4, -1] == causes.innermost(half, ints(0, 0), ints(20, 21)).tolist()
    # Waits inside a parent of many short children are the parent's, and nobody's beyond it.
    start = ints(0, *range(0, 1000, 10))
    ranges = causes.Placed(start, np.append(1000, start[1:] + 4), np.arange(101))
    assert causes.innermost(ranges, ints(100, 101, 990), ints(300, 104, 1400)).tolist() == [0, 11, -1]
    # Five thousand ranges that all end with the capture nest: the last opened is the innermost.
    ranges = causes.Placed(np.arange(5_000), np.full(5_000, 10_000), np.arange(5_000))
    assert causes.innermost(ranges, ints(0, 6_000), ints(100, 9_000)).tolist() == [50, 4_999]
