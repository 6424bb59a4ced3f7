"""Graph launches without operations, and silence inside graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from frames import api_calls, copies, kernels

import perfkit
from perfkit.analysis.host import recorded
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, COPIES, KERNELS

US = 1_000


def launch(at_us: int, correlation: int, name: str = "cudaGraphLaunch", **more: Any) -> dict[str, Any]:
    """A call of 10 us."""
    return {"start_ns": at_us * US, "dur_ns": 10 * US, "name": name, "correlation": correlation, **more}


def node(start_us: int, end_us: int, correlation: int, **more: Any) -> dict[str, Any]:
    """An operation that a call started."""
    return {"start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, "correlation": correlation, **more}


def row(found: pd.DataFrame) -> tuple[int, ...]:
    """The only row of a table: rank, launches, empty ones, idle time in us."""
    assert 1 == len(found)
    rank, launches, empty, idle_ns = found.iloc[0].tolist()
    return rank, launches, empty, idle_ns // US


def test_graphs_by_hand() -> None:
    """Graph 1 ran [20, 50) and [120, 150), 70 us apart and launched before; graph 2 ran nothing; 3 is none."""
    calls = api_calls(launch(0, 1), launch(15, 2), launch(30, 3, "cudaLaunchKernel"))
    work = kernels(node(20, 50, 1), node(120, 150, 1), node(300, 310, 3))
    assert (0, 2, 1, 70) == row(recorded(work, COPIES.empty(), calls))


def test_copies_are_nodes_too() -> None:
    """A memset of the graph that ends the silence is as good as a kernel."""
    calls = api_calls(launch(0, 1))
    found = recorded(kernels(node(20, 50, 1)), copies(node(120, 121, 1, direction="memset")), calls)
    assert (0, 1, 0, 70) == row(found)


@pytest.mark.parametrize(
    ("launch_us", "start_us", "idle_us"), [(60, 120, 0), (39, 120, 70), (41, 120, 0), (0, 79, 0), (0, 80, 30)]
)
def test_silence_counts_once_the_launch_has_returned(launch_us: int, start_us: int, idle_us: int) -> None:
    """Dry from 50 us: a call [60, 70) is the reason itself, [41, 51) might be, [39, 49) is not; nor are under 30 us."""
    work = kernels(node(20, 50, 9), node(start_us, 130, 1))
    assert (0, 1, 0, idle_us) == row(recorded(work, COPIES.empty(), api_calls(launch(launch_us, 1))))


def test_work_beside_is_no_silence() -> None:
    """Between two nodes a kernel of another stream runs: the GPU is not idle."""
    work = kernels(node(20, 50, 1), node(40, 125, 9, stream=8), node(120, 150, 1))
    assert (0, 1, 0, 0) == row(recorded(work, COPIES.empty(), api_calls(launch(0, 1))))


def test_ranks_and_processes_are_kept_apart() -> None:
    """Correlation 1 of another process or rank is another launch."""
    calls = api_calls(launch(0, 1), launch(0, 1, process=2), launch(0, 1, rank=1))
    found = recorded(kernels(node(20, 50, 1), node(20, 50, 1, rank=1)), COPIES.empty(), calls)
    assert [[0, 2, 1, 0], [1, 1, 0, 0]] == found.to_numpy().tolist()


def test_two_nodes_that_start_together_end_one_gap() -> None:
    """Silence of 70 us before two nodes at once is 70 us."""
    work = kernels(node(20, 50, 1), node(120, 150, 1), node(120, 140, 1, stream=8))
    assert (0, 1, 0, 70) == row(recorded(work, COPIES.empty(), api_calls(launch(0, 1))))


def test_graphs_in_a_window() -> None:
    """In [100, 130) lies no launch; in [0, 90) one, whose silence ends beyond; in [5, 130) both."""
    calls, work = api_calls(launch(0, 1)), kernels(node(20, 50, 1), node(120, 150, 1))
    assert recorded(work, COPIES.empty(), calls, window=(100 * US, 130 * US)).empty
    assert (0, 1, 0, 0) == row(recorded(work, COPIES.empty(), calls, window=(0, 90 * US)))
    assert (0, 1, 0, 70) == row(recorded(work, COPIES.empty(), calls, window=(5 * US, 130 * US)))


@pytest.mark.parametrize("calls", [API_CALLS.empty(), api_calls(launch(0, 1, "cudaLaunchKernel"))])
def test_no_graphs(calls: pd.DataFrame) -> None:
    """Without graph launches there is no row, of the same columns and types."""
    found = recorded(KERNELS.empty(), COPIES.empty(), calls)
    full = recorded(kernels(node(20, 50, 1)), COPIES.empty(), api_calls(launch(0, 1)))
    assert found.empty
    pd.testing.assert_series_equal(full.dtypes, found.dtypes)
    assert ["int32", "int64", "int64", "int64"] == full.dtypes.astype(str).tolist()


def test_wrong_tables_are_refused() -> None:
    """Tables must be what they are called."""
    with pytest.raises(SchemaError):
        recorded(COPIES.empty(), COPIES.empty(), API_CALLS.empty())
    with pytest.raises(SchemaError):
        recorded(KERNELS.empty(), COPIES.empty(), KERNELS.empty())


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("HTA__negative_queue_length_values_check__rank0.json.gz", (0, 70, 0, 616_067)),
        ("TraceLens__sglang_decode__sglang_Qwen3-8B_decode.json.gz", (0, 1, 0, 0)),
        ("TraceLens__vllm_decode_full__graph_execution.json.gz", (0, 1, 0, 0)),
    ],
)
def test_real_graphs(profiles: Path, trace: str, expected: tuple[int, ...]) -> None:
    """HTA's trace lacks nodes: a graph launched at 1,044 ms is silent from 1,109 to 1,174 ms, and so in all five steps.

    Between its recorded products, 1.6 ms each, pauses of 1.8 ms are left where other nodes ran. The decode traces hold
    all 544 and 421 nodes of their one graph.
    """
    run = perfkit.load(profiles / "torch" / trace)
    assert expected == row(recorded(run.kernels, run.copies, run.api_calls))
