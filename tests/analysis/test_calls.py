"""What CUDA calls do, and which call started an operation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, kernels

from perfkit.analysis.causes import is_graph_launch, is_launch, is_memory, is_sync, numbered_together, started_by, where

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
def test_calls_are_told_by_name(fulfils: object) -> None:
    """Runtime, driver and HIP names belong, with suffixes too; queries and graph building belong nowhere."""
    assert callable(fulfils)
    assert [n for n in CALLS[fulfils].split() if not fulfils(n)] == []
    assert [n for n in OTHERS.split() if fulfils(n)] == []


def test_asynchronous_copies_do_not_synchronise() -> None:
    """Async anywhere in the name of a copy means that the call does not wait."""
    assert not any(is_sync(n) for n in ("cudaMemcpyAsync", "cudaMemcpy2DAsync", "cuMemcpyDtoDAsync_v2", "cudaMemset"))


def test_where_asks_once_per_category_and_denies_missing() -> None:
    """A million rows of two names cost two questions; a missing name fulfils nothing."""
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


def test_operations_join_within_rank_and_process() -> None:
    """Id 5 occurs in two processes and two ranks; each operation finds its own call, id 6 finds none."""
    calls = api_calls(row(5), row(5, process=2), row(7, process=2), row(5, rank=1))
    work = kernels(row(5), row(5, process=2), row(6), row(5, process=3), row(5, rank=1))
    assert started_by(work, calls).tolist() == [0, 1, -1, -1, 3]


def test_operations_of_a_graph_share_their_call() -> None:
    """Three nodes with one id all find the one launch."""
    assert started_by(kernels(row(9), row(9), row(9)), api_calls(row(8), row(9))).tolist() == [1, 1, 1]


def test_first_of_several_calls_counts() -> None:
    """Two calls with one id: the earlier row is taken, though others stand between and out of order."""
    calls = api_calls(row(4, start_ns=0), row(2, start_ns=1), row(4, start_ns=2), row(2, start_ns=3))
    assert started_by(kernels(row(2), row(4)), calls).tolist() == [1, 0]


def test_negative_ids_never_match() -> None:
    """-1 means none, on both sides, and never reaches into a neighbouring process."""
    calls = api_calls(row(-1), row(3), row(-1, process=2), row(-2, process=2))
    work = kernels(row(-1), row(-1, process=2), row(-2, process=2), row(3))
    assert started_by(work, calls).tolist() == [-1, -1, -1, 1]


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


def test_nothing_joins_nothing() -> None:
    """Without calls no operation has one; without operations there is nothing to say."""
    assert started_by(kernels(row(1)), api_calls()).tolist() == [-1]
    assert started_by(kernels(), api_calls(row(1))).tolist() == []
