"""Idle times that are looked up: as `idle_gaps` finds them in the operations of the window, to the last column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, copies, kernels, ranges
from real import MFU, OPTIMISED

import perfkit
from perfkit.analysis import causes
from perfkit.analysis.causes import determinable
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.lanes import Idle
from perfkit.tables import API_CALLS, COPIES, KERNELS, RANGES

Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]


def made(seed: int) -> Tables:
    """Two ranks with two GPUs each, streams that overlap, threads that launch late, wait and nest, some ids unknown."""
    rng = np.random.default_rng(seed)

    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    def at(count: int, most: int) -> list[dict[str, Any]]:
        return [
            {"start_ns": int(rng.integers(0, 900_000)), "dur_ns": int(rng.integers(0, most)), "rank": pick(0, 1)}
            for _ in range(count)
        ]

    work = [{**row, "gpu": pick(0, 1), "stream": pick(7, 9), "correlation": n} for n, row in enumerate(at(40, 20_000))]
    moved = [{**row, "gpu": pick(0, 1), "correlation": 40 + n} for n, row in enumerate(at(8, 9_000))]
    names = ("cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc", "cudaGraphLaunch", "cudaEventQuery")
    called = [
        {**row, "name": pick(*names), "thread": pick(1, 2), "correlation": pick(n, n, n, -1)}
        for n, row in enumerate(at(48, 30_000))
    ]
    nested = [{**row, "name": pick("load data", "forward", "step"), "thread": pick(1, 2)} for row in at(12, 200_000)]
    return kernels(*work), copies(*moved), api_calls(*called), ranges(*nested)


def chosen(tables: Tables, ranks: tuple[int, ...], gpus: tuple[int, ...]) -> Tables:
    """The operations of some ranks and GPUs, calls and ranges of these ranks."""
    of_rank = [frame[frame["rank"].isin(ranks)] if ranks else frame for frame in tables]
    kept = [frame[frame["gpu"].isin(gpus)] if gpus else frame for frame in of_rank[:2]]
    return kept[0], kept[1], of_rank[2], of_rank[3]


def check(tables: Tables, index: Idle, windows: list[Any], ranks: tuple[int, ...], gpus: tuple[int, ...]) -> None:
    """Compare every window of a choice."""
    work, moved, called, named = chosen(tables, ranks, gpus)
    for window in windows:
        expected = idle_gaps(work, moved, called, window=window, ranges=named)
        pd.testing.assert_frame_equal(expected, index.gaps(window=window, ranks=ranks, gpus=gpus))
    assert determinable(work, moved, called) == index.determinable(ranks=ranks, gpus=gpus)


@pytest.mark.parametrize("seed", range(6))
def test_looked_up_gaps_agree_with_those_found(seed: int) -> None:
    """Any window, on and off edges of operations, beyond the work, inside one gap; ranks and GPUs, one unknown too."""
    tables = made(seed)
    index = Idle(*tables[:3], ranges=tables[3])
    start, end = tables[0]["start_ns"], tables[0]["start_ns"] + tables[0]["dur_ns"]
    rng = np.random.default_rng(seed)
    edges = np.concatenate([rng.integers(-9, 10**6, 40), rng.choice(start, 12), rng.choice(end, 12)])
    pairs = np.sort(edges[rng.integers(0, len(edges), (60, 2))], axis=1)
    windows = [None, (-500, 2_000_000), *((int(a), int(b)) for a, b in pairs if a < b)]
    for ranks, gpus in (((), ()), ((1,), ()), ((), (0,)), ((0,), (1,)), ((0, 1), (0, 1)), ((), (5,))):
        check(tables, index, windows, ranks, gpus)


@pytest.mark.parametrize("capture", [MFU, OPTIMISED])
def test_gaps_of_real_captures(profiles: Path, capture: str) -> None:
    """The whole, halves of it and 20 short windows, for each GPU."""
    run = perfkit.load(profiles / "nsys" / capture)
    tables = (run.kernels, run.copies, run.api_calls, run.ranges)
    first, last = int(run.kernels["start_ns"].min()), int(run.kernels["start_ns"].max())
    edges = np.random.default_rng(0).integers(first, last, 20).tolist()
    windows = [
        None,
        (first, (first + last) // 2),
        ((first + last) // 2, last),
        *((edge, edge + 300_000) for edge in edges),
    ]
    index = Idle(*tables[:3], ranges=tables[3])
    for gpu in run.kernels["gpu"].unique().tolist():
        check(tables, index, windows, (), (gpu,))
    check(tables, index, windows, (), ())


def test_a_run_without_operations_has_no_gap() -> None:
    """And no GPU that could be looked at."""
    index = Idle(KERNELS.empty(), COPIES.empty(), API_CALLS.empty(), ranges=RANGES.empty())
    assert index.gaps().empty
    assert index.gaps(window=(0, 9), gpus=(0,)).empty
    assert "the capture holds no operation of a GPU" == index.determinable().why


def test_a_window_that_ends_before_it_starts_is_refused() -> None:
    """As everywhere."""
    with pytest.raises(ValueError, match="does not end after it starts"):
        Idle(*made(0)[:3]).gaps(window=(9, 9))


def test_waits_explained_by_parts_are_explained_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at a time, so that only the calls and ranges around them are looked at: as all at once."""
    for seed in range(4):
        *work, named = made(seed)
        whole = idle_gaps(*work, ranges=named)
        monkeypatch.setattr(causes, "WAITS", 3)
        pd.testing.assert_frame_equal(whole, idle_gaps(*work, ranges=named))
        monkeypatch.undo()
        assert (whole["cause"] == "host_wait").sum() > 3
