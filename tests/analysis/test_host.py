"""Calls, ranges and synchronisations of the CPU, waiting for input, and gaps inside graphs."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from analysis.spans import loaded, span, steps, us
from frames import api_calls, copies, kernels, known, lasting, ranges, tuples, types

from perfkit.analysis.host import BLOCKING, input_wait, recorded, synchronisations
from perfkit.analysis.steps import STEPS
from perfkit.tables import COPIES, KERNELS, RANGES


def test_synchronisations_by_hand() -> None:
    name = "cudaDeviceSynchronize"
    others = lasting(0, 10, "cudaLaunchKernel"), lasting(90, 10, "cudaMemcpyAsync")
    found = synchronisations(api_calls(*others, lasting(20, 20, name), lasting(50, 30, name)))
    assert found.to_numpy().tolist() == [[0, 1, 1, name, 2, 50, 30, 0.5]]
    # In 50..150 one thread waits 50 of 100 ns and the other 10; calls outside do not count.
    copied = lasting(140, 100, "cudaMemcpy", thread=2), lasting(160, 10, "cudaMemcpy", thread=2)
    found = synchronisations(
        api_calls(lasting(0, 100, "cudaStreamSynchronize"), *copied), window=(50, 150)
    )
    expected = [(1, "cudaStreamSynchronize", 1, 50, 0.5), (2, "cudaMemcpy", 1, 10, 0.1)]
    assert expected == tuples(found, "thread", "name", "count", "total_ns", "share_frac")


WAITING = (
    "cudaDeviceSynchronize cudaStreamSynchronize_ptsz cudaEventSynchronize cuCtxSynchronize cuStreamSynchronize"
    " cuEventSynchronize hipDeviceSynchronize cudaMemcpy cudaMemcpy2D_ptds cudaMemcpyToSymbol cuMemcpyDtoH_v2 cudaFree"
    " cudaFreeHost cuMemFree cudaDeviceReset cuCtxDestroy"
)
RETURNING = (
    "cudaLaunchKernel cudaMemcpyAsync cudaMemcpy2DAsync_ptsz cuMemcpyHtoDAsync_v2 cudaMemcpyPeer cudaMemset"
    " cudaFreeAsync cuMemFreeAsync cudaEventQuery cudaStreamWaitEvent cudaMalloc mySynchronize"
)


def test_blocking_calls() -> None:
    every = (WAITING + " " + RETURNING).split()
    waits = synchronisations(api_calls(*(lasting(10 * i, 5, name) for i, name in enumerate(every))))
    assert set(WAITING.split()) == set(waits["name"])
    some, none = (
        synchronisations(api_calls(lasting(0, 1, name))) for name in ("cudaFree", "cudaMalloc")
    )
    assert (0, types(some)) == (len(none), types(none))
    assert synchronisations(api_calls(lasting(5, 0, "cudaFree")))["share_frac"].isna().all()
    assert all(reason.strip() for reason in BLOCKING.values())


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LOADERS = LOADER, "get_batch", "next batch", "DataLoader", "batch-generator"


def loading(start: int, end: int, name: str = LOADER, **more: Any) -> dict[str, Any]:
    return span(start, end, name=name, **more)


TWO, BOTH = (
    steps((0, 100), (100, 200)),
    STEPS.make(pd.concat([steps((0, 100)), steps((0, 100), rank=1)])),
)


def test_input_of_a_step_is_what_copies_bring_that_start_in_it() -> None:
    sent = [(0, 7), (99, 20), (100, 400), (200, 5000)]
    others = [span(50, 51, bytes=9, **of) for of in ({"direction": "D2H"}, {"rank": 1})]
    moved = copies(*(span(at, at + 30, bytes=size) for at, size in sent), *others)
    assert [27, 400] == input_wait(RANGES.empty(), TWO, moved)["input_bytes"].tolist()


@pytest.mark.parametrize(
    ("spans", "of", "expected"),
    [
        # The loader runs 0..40 and 110..120: 40 % as in the chapter's case 1, and 10 %.
        ([loading(0, 40), loading(110, 120)], TWO, [(40, 0.4), (10, 0.1)]),
        # A wait 90..130 lies 10 ns in the step that ends at 100 and 30 in the next.
        ([loading(90, 130)], TWO, [(10, 0.1), (30, 0.3)]),
        # A step in which the loader is not asked waits for 0.
        ([loading(0, 40)], TWO, [(40, 0.4), (0, 0.0)]),
        # A range "Data loading" around the loader's covers 30 ns with it.
        ([loading(0, 30, "Data loading"), loading(5, 25, depth=1)], steps((0, 100)), [(30, 0.3)]),
        # Of two threads the one that spends more time loading is taken: 40 and 10 ns, not the 60 of a helper's 5.
        (
            [loading(0, 40), loading(110, 120), loading(60, 65, thread=2)],
            TWO,
            [(40, 0.4), (10, 0.1)],
        ),
        # The loader of rank 1 does not count in the steps of rank 0.
        ([loading(0, 40), loading(20, 90, rank=1)], BOTH, [(40, 0.4), (70, 0.7)]),
        # A rank that records no loading says nothing: missing, not 0; nor is there an answer where nothing was named.
        ([loading(0, 40), loading(0, 90, "forward", rank=1)], BOTH, [(40, 0.4), (None, None)]),
        ([], steps((0, 100)), [(None, None)]),
        # Of a step of no duration 0 of 0 is NaN.
        ([loading(0, 40)], steps((5, 5)), [(0, None)]),
        # PyTorch's range and the names that people give to loading count.
        *(([loading(0, 9, name)], steps((0, 100)), [(9, 0.09)]) for name in LOADERS),
    ],
)
def test_waits_by_hand(
    spans: list[dict[str, Any]], of: pd.DataFrame, expected: list[tuple[Any, ...]]
) -> None:
    assert expected == known(input_wait(ranges(*spans), of), "wait_ns", "wait_frac")


US = 1_000


def launch(
    at_us: int, correlation: int, name: str = "cudaGraphLaunch", **more: Any
) -> dict[str, Any]:
    return us(at_us, at_us + 10, correlation, name=name, **more)


def gap_inside(found: pd.DataFrame) -> tuple[int, ...]:
    ((rank, launches, empty, idle_ns),) = found.to_numpy().tolist()
    return rank, launches, empty, idle_ns // US


ONE = api_calls(launch(0, 1))


def test_graphs_by_hand() -> None:
    calls = api_calls(launch(0, 1), launch(15, 2), launch(30, 3, "cudaLaunchKernel"))
    first, second, none = us(20, 50, 1), us(120, 150, 1), COPIES.empty()
    memset = copies(us(120, 121, 1, direction="memset"))
    for work, moved, called, expected in (
        ((first, second, us(300, 310, 3)), none, calls, (0, 2, 1, 70)),
        ((first,), memset, ONE, (0, 1, 0, 70)),
        ((first, second, us(120, 140, 1, stream=8)), none, ONE, (0, 1, 0, 70)),
        ((first, us(40, 125, 9, stream=8), second), none, ONE, (0, 1, 0, 0)),
    ):
        assert expected == gap_inside(recorded(kernels(*work), moved, called))
    assert recorded(KERNELS.empty(), none, api_calls(launch(0, 1, "cudaLaunchKernel"))).empty
    calls = api_calls(launch(0, 1), launch(0, 1, process=2), launch(0, 1, rank=1))
    found = recorded(kernels(us(20, 50, 1), us(20, 50, 1, rank=1)), none, calls)
    assert [[0, 2, 1, 0], [1, 1, 0, 0]] == found.to_numpy().tolist()
    tables = kernels(first, second), none, ONE
    assert recorded(*tables, window=(100 * US, 130 * US)).empty
    assert (0, 1, 0, 0) == gap_inside(recorded(*tables, window=(0, 90 * US)))
    assert (0, 1, 0, 70) == gap_inside(recorded(*tables, window=(5 * US, 130 * US)))


def test_silence_counts_once_the_launch_has_returned() -> None:
    for launch_us, start_us, idle_us in (
        (60, 120, 0),
        (39, 120, 70),
        (41, 120, 0),
        (0, 79, 0),
        (0, 80, 30),
    ):
        work = kernels(us(20, 50, 9), us(start_us, 130, 1))
        assert (0, 1, 0, idle_us) == gap_inside(
            recorded(work, COPIES.empty(), api_calls(launch(launch_us, 1)))
        )


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("HTA__negative_queue_length_values_check__rank0.json.gz", (0, 70, 0, 616_067)),
        ("TraceLens__sglang_decode__sglang_Qwen3-8B_decode.json.gz", (0, 1, 0, 0)),
        ("TraceLens__vllm_decode_full__graph_execution.json.gz", (0, 1, 0, 0)),
    ],
)
def test_real_graphs(profiles: Path, trace: str, expected: tuple[int, ...]) -> None:
    """HTA's trace lacks nodes: a graph launched at 1,044 ms is silent from 1,109 to 1,174 ms, in all five steps."""
    run = loaded(profiles / "torch" / trace)
    assert expected == gap_inside(recorded(run.kernels, run.copies, run.api_calls))
