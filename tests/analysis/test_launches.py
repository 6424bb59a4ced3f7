"""Launch latency and queue depth, and those of real captures against Nsight Systems."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import api_calls, kernels
from real import CUT_DOWN, SQLITE

import perfkit
from perfkit.analysis.causes import LAUNCH_CALLS, is_launch
from perfkit.analysis.host import LATENCY, latency, latency_summary, queue_depth
from perfkit.tables import API_CALLS

STATISTICS = {"mean": statistics.mean, "median": statistics.median, "min": min, "max": max, "std": statistics.stdev}


def span(start_ns: int, end_ns: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    """A kernel or call from start to end."""
    return {"start_ns": start_ns, "dur_ns": end_ns - start_ns, "correlation": correlation, **more}


def random_tables(seed: int, count: int = 300) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Kernels of two processes on two devices, most of them with a call."""
    rng = np.random.default_rng(seed)
    calls, work = [], []
    for i in range(count):
        called, process = int(rng.integers(0, 50_000)), int(rng.integers(1, 3))
        start = called + int(rng.integers(1, 4_000))
        place = {"gpu": int(rng.integers(0, 2)), "stream": int(rng.integers(0, 3)), "name": rng.choice(["a", "b", "c"])}
        work.append(span(start, start + int(rng.integers(0, 2_000)), i, process=process, **place))
        if rng.random() < 0.9:
            name = rng.choice(["cudaLaunchKernel", "cuLaunchKernel"])
            where = {"process": process, "thread": int(rng.integers(1, 3)), "name": name}
            calls.append(span(called, called + int(rng.integers(0, 3_000)), i, **where))
    return kernels(*work), api_calls(*calls)


def test_latency_by_hand() -> None:
    """Call [0, 8), kernel [20, 50): api 8, queue 20 - 8 = 12, delay 20, dur 30, total 50 - 0 = 50."""
    (got,) = latency(kernels(span(20, 50, 1)), api_calls(span(0, 8, 1, thread=4))).to_dict("records")
    expected = {"api_ns": 8, "queue_ns": 12, "delay_ns": 20, "dur_ns": 30, "total_ns": 50, "start_ns": 0, "thread": 4}
    assert expected == {name: got[name] for name in expected}
    assert got["api"] == "cudaLaunchKernel"


def test_kernel_that_starts_before_its_call_returns_has_no_queue_time() -> None:
    """Call [0, 30), kernel [10, 20): queue 10 - 30 is negative, so missing; total ends with the call, 30."""
    (got,) = latency(kernels(span(10, 20, 1)), api_calls(span(0, 30, 1))).to_dict("records")
    assert pd.isna(got["queue_ns"])
    assert (got["total_ns"], got["delay_ns"]) == (30, 10)


def test_kernel_that_starts_as_its_call_returns_queued_for_no_time() -> None:
    """Call [0, 30), kernel [30, 40): a queue time of 0 counts as one."""
    assert latency(kernels(span(30, 40, 1)), api_calls(span(0, 30, 1)))["queue_ns"].tolist() == [0]


def test_without_any_call_there_is_no_latency() -> None:
    """A kernel alone has no row, and no row has no summary."""
    assert latency_summary(LATENCY.check(latency(kernels(span(1, 2, 1)), API_CALLS.empty()))).empty


def test_kernels_without_call_are_left_out() -> None:
    """Of three kernels of GPU 0 one has its call; GPU 1 lacks none."""
    work = kernels(span(5, 6, 1), span(7, 8), span(9, 10, 99), span(9, 10, 2, gpu=1))
    calls = api_calls(span(0, 1, 1), span(1, 2, 2))
    assert latency(work, calls)["correlation"].tolist() == [1, 2]


def test_all_kernels_of_a_graph_have_its_launch() -> None:
    """Three nodes after one call [0, 5) queue 5, 15 and 25 ns."""
    work = kernels(*(span(t, t + 5, 1, in_graph=True) for t in (10, 20, 30)))
    assert latency(work, api_calls(span(0, 5, 1, name="cudaGraphLaunch")))["queue_ns"].tolist() == [5, 15, 25]


def test_window_selects_by_kernel_start() -> None:
    """[10, 20) keeps the kernel that starts at 10, whole, and not those that start at 9 and 20."""
    work = kernels(span(9, 50, 1), span(10, 50, 2), span(20, 50, 3))
    got = latency(work, api_calls(*(span(i, i + 1, i) for i in (1, 2, 3))), window=(10, 20))
    assert got[["correlation", "dur_ns"]].to_numpy().tolist() == [[2, 40]]


def test_summary_by_hand() -> None:
    """Two launches: api 2 and 10 ns, queue 8 and missing, dur 10 and 20, totals 20 and 26."""
    work = kernels(span(10, 20, 1, full_name="k<1>", name="k"), span(102, 122, 2, full_name="k<2>", name="k"))
    calls = api_calls(span(0, 2, 1), span(96, 106, 2))
    (got,) = latency_summary(latency(work, calls)).to_dict("records")
    names = ["rank", "process", "thread", "gpu", "api", "name", "count", "queue_count", "total_mean_ns", "total_max_ns"]
    assert [got[name] for name in names] == [0, 1, 1, 0, "cudaLaunchKernel", "k", 2, 1, 23.0, 26.0]
    assert [got[f"{name}_ns"] for name in ("api_median", "queue_mean", "dur_mean", "dur_min")] == [6.0, 8.0, 15.0, 10.0]
    assert pytest.approx(32**0.5) == got["api_std_ns"]
    assert pd.isna(got["queue_std_ns"])
    apart = latency_summary(latency(work, calls), by="full_name")
    assert apart[["full_name", "count", "queue_count"]].to_numpy().tolist() == [["k<2>", 1, 0], ["k<1>", 1, 1]]
    assert apart["queue_mean_ns"].isna().tolist() == [True, False]


def test_summary_equals_a_loop_over_groups() -> None:
    """Counts and all statistics agree with Python's, group by group."""
    rows = latency(*random_tables(1))
    got = latency_summary(rows)
    keys = ["rank", "process", "thread", "gpu", "api", "name"]
    assert len(got) == len(set(rows[keys].itertuples(index=False, name=None)))
    for group in got.to_dict("records"):
        own = rows[np.logical_and.reduce([rows[key] == group[key] for key in keys])]
        assert (len(own), own["queue_ns"].count()) == (group["count"], group["queue_count"])
        for quantity in ("total", "api", "queue", "dur"):
            values = own[f"{quantity}_ns"].dropna().astype(int).tolist()
            for name, statistic in STATISTICS.items():
                expected = statistic(values) if len(values) > (name == "std") else float("nan")
                assert pytest.approx(expected, nan_ok=True) == group[f"{quantity}_{name}_ns"]
    assert got["total_mean_ns"].is_monotonic_decreasing


def depths(frame: pd.DataFrame) -> list[tuple[int, int]]:
    """Time and depth of each step."""
    return list(zip(frame["time_ns"], frame["depth"], strict=True))


def test_queue_depth_by_hand() -> None:
    """Calls at 0, 2, 4 and starts at 3, 10, 20: depth 1, 2, 1, 2, 1, 0."""
    work = kernels(span(3, 9, 1), span(10, 19, 2), span(20, 30, 3))
    got = queue_depth(work, api_calls(span(0, 1, 1), span(2, 3, 2), span(4, 5, 3)))
    assert depths(got) == [(0, 1), (2, 2), (3, 1), (4, 2), (10, 1), (20, 0)]
    assert got["complete"].all()


def test_steps_at_one_time_are_one_row() -> None:
    """A call and the start of an earlier kernel at 5 leave the depth at 1."""
    work = kernels(span(5, 6, 1), span(9, 10, 2))
    assert depths(queue_depth(work, api_calls(span(0, 1, 1), span(5, 7, 2)))) == [(0, 1), (5, 1), (9, 0)]


def test_streams_processes_and_devices_queue_apart() -> None:
    """Stream 7 of two processes, stream 8 and GPU 1 are four queues, in order of gpu, process, stream."""
    places = [{"process": 2}, {"gpu": 1}, {"stream": 8}, {}]
    work = kernels(*(span(10, 11, i, **place) for i, place in enumerate(places)))
    calls = api_calls(*(span(i, 9, i, process=place.get("process", 1)) for i, place in enumerate(places)))
    got = queue_depth(work, calls)
    expected = [[0, 1, 7, 3, 1], [0, 1, 7, 10, 0], [0, 1, 8, 2, 1], [0, 1, 8, 10, 0]]
    expected += [[0, 2, 7, 0, 1], [0, 2, 7, 10, 0], [1, 1, 7, 1, 1], [1, 1, 7, 10, 0]]
    assert expected == got[["gpu", "process", "stream", "time_ns", "depth"]].to_numpy().tolist()


def test_graph_launch_counts_once() -> None:
    """Nodes on two streams and two devices: one in the queue of each device from the call to its first node."""
    nodes = span(10, 11, 1, stream=3), span(12, 13, 1, stream=4), span(14, 15, 1, stream=3), span(20, 21, 1, gpu=1)
    got = queue_depth(kernels(*nodes), api_calls(span(0, 5, 1, name="cudaGraphLaunch")))
    assert (got["stream"].tolist(), depths(got)) == ([3, 3, 7, 7], [(0, 1), (10, 0), (0, 1), (20, 0)])


def test_stream_of_a_cut_capture_is_not_complete() -> None:
    """The call of the first kernel was not recorded: stream 7 goes to -1 and is marked; stream 8 is not."""
    work = kernels(span(2, 3), span(6, 7, 1), span(6, 7, 2, stream=8))
    got = queue_depth(work, api_calls(span(4, 5, 1), span(5, 6, 2)))
    assert depths(got[got["stream"] == 7]) == [(2, -1), (4, 0), (6, -1)]
    assert got.groupby("stream")["complete"].unique().map(list).to_dict() == {7: [False], 8: [True]}


def test_window_begins_with_the_depth_it_finds() -> None:
    """Steps at 0, 2, 3, 4, 10, 20: the window [3, 10) has 3 and 4; [5, 8) only holds the depth 2 of before."""
    work = kernels(span(3, 9, 1), span(10, 19, 2), span(20, 30, 3))
    calls = api_calls(span(0, 1, 1), span(2, 3, 2), span(4, 5, 3))
    assert depths(queue_depth(work, calls, window=(3, 10))) == [(3, 1), (4, 2)]
    assert depths(queue_depth(work, calls, window=(5, 8))) == [(5, 2)]


@pytest.mark.parametrize("window", [None, (10_000, 30_000)])
def test_queue_depth_equals_a_count_at_each_step(window: tuple[int, int] | None) -> None:
    """At every step of random queues the depth is the calls so far less the kernels started so far."""
    work, calls = random_tables(2)
    got = queue_depth(work, calls, window=window)
    called = work.merge(calls, on=["rank", "process", "correlation"], suffixes=("", "_call"))
    keys = ["rank", "gpu", "process", "stream"]
    for step in got.to_dict("records"):
        own, launched = (f[np.logical_and.reduce([f[k] == step[k] for k in keys])] for f in (work, called))
        expected = (launched["start_ns_call"] <= step["time_ns"]).sum() - (own["start_ns"] <= step["time_ns"]).sum()
        assert expected == step["depth"]
    if window is None:
        negative = got.groupby(keys)["depth"].min() < 0
        assert negative.any()
        assert (got.groupby(keys)["complete"].all() == ~negative).all()


def test_an_unknown_grouping_is_refused() -> None:
    """The groupings are named."""
    with pytest.raises(ValueError, match="by: 'family' is not one of name, full_name"):
        latency_summary(LATENCY.empty(), by="family")


def test_launch_calls_launch() -> None:
    """Every name of the published set is a launch to the predicate."""
    assert all(is_launch(name) for name in LAUNCH_CALLS)


CAPTURES = [c for c in SQLITE if c != CUT_DOWN]
# These exports hold each call of the runtime and, inside it, its versioned form (cudaLaunchKernel_v7000).
CALLED_TWICE = ["extra-p__extrap__ex-gpu.s10.sqlite", "hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite"]
QUANTITIES = {"T": "total", "A": "api", "Q": "queue", "K": "dur"}
REAL_STATISTICS = {"Avg": "mean", "Med": "median", "Min": "min", "Max": "max", "StdDev": "std"}
KEYS = {
    "PID": "process",
    "TID": "thread",
    "DevId": "gpu",
    "API Name": "api",
    "Kernel Name": "full_name",
    "Count": "count",
    "QCount": "queue_count",
}


def both(profiles: Path, capture: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The vendor's cuda_kern_exec_sum and our summary in the same columns and order.

    The vendor strips the version of a call's name where it has four digits (_v7000) and not where it has five
    (_v11060). One value has no standard deviation here, 0.0 there.
    """
    run = perfkit.load(profiles / "nsys" / capture)
    report = profiles / "golden" / "nsys" / capture.removesuffix(".sqlite") / "cuda_kern_exec_sum.csv"
    columns = {f"{v}{s} (ns)": f"{q}_{n}_ns" for v, q in QUANTITIES.items() for s, n in REAL_STATISTICS.items()}
    vendor = pd.read_csv(report).rename(columns=KEYS | columns)
    vendor["api"] = vendor["api"].str.replace(r"_v\d{5}$", "", regex=True)
    vendor = vendor.sort_values(list(KEYS.values()), ignore_index=True)
    ours = latency_summary(latency(run.kernels, run.api_calls), by="full_name").drop(columns="rank")
    ours = ours.astype({"api": "object", "full_name": "object"}).sort_values(list(KEYS.values()), ignore_index=True)
    for column in ours.columns[ours.columns.str.endswith("_std_ns")]:
        ours[column] = ours[column].fillna(0.0)
    return vendor[ours.columns].astype(ours.dtypes), ours


@pytest.mark.parametrize("capture", [c for c in CAPTURES if c not in CALLED_TWICE])
def test_summary_equals_cuda_kern_exec_sum(profiles: Path, capture: str) -> None:
    """Every group and all 20 statistics agree to the printed tenth of a nanosecond.

    Both join kernels and calls on process and correlation id and leave kernels without a call out. Where we
    differ: without any queue time that is missing.
    """
    vendor, ours = both(profiles, capture)
    pd.testing.assert_frame_equal(vendor, ours, rtol=0, atol=0.0501)


@pytest.mark.parametrize("capture", CALLED_TWICE)
def test_a_call_recorded_twice_launches_its_kernel_once(profiles: Path, capture: str) -> None:
    """The vendor joins both forms of the call and counts every kernel twice; we take the outer one, once."""
    vendor, ours = both(profiles, capture)
    assert vendor["count"].tolist() == [2 * count for count in ours["count"]]
    same = ["full_name", "api", "dur_min_ns", "dur_max_ns", "dur_median_ns", "dur_mean_ns", "api_max_ns"]
    same += ["total_max_ns"]  # from the start of the outer call
    pd.testing.assert_frame_equal(vendor[same], ours[same], rtol=0, atol=0.0501)


@pytest.mark.parametrize("capture", [*CAPTURES, "ayush-os__nsight-systems-deep-dive__vector_add_profile_v3_pqtdir"])
def test_latency_of_real_captures(profiles: Path, capture: str) -> None:
    """Kernels with and without call, and the delays between them, equal an independent computation."""
    run = perfkit.load(profiles / "nsys" / capture)
    truth = profiles / "golden" / "nsys" / f"{capture.removesuffix('.sqlite')}.truth.json"
    expected = json.loads(truth.read_text())["launch"]
    rows = LATENCY.check(latency(run.kernels, run.api_calls))
    assert expected["kernels_with_api_row"] == len(rows)
    assert expected["kernels_without"] == len(run.kernels) - len(rows)
    delay = rows["delay_ns"]
    from_start = {"mean": delay.mean(), "median": delay.median(), "max": delay.max()}
    assert pytest.approx(expected["from_api_start"], rel=1e-12) == from_start
    assert expected["from_api_end"]["negative"] == rows["queue_ns"].isna().sum()


@pytest.mark.parametrize("capture", CAPTURES)
def test_every_queue_of_a_whole_capture_ends_empty(profiles: Path, capture: str) -> None:
    """All kernels have started in the end; only the slice that begins amid the run has incomplete queues."""
    run = perfkit.load(profiles / "nsys" / capture)
    steps = queue_depth(run.kernels, run.api_calls)
    last = steps.groupby(["gpu", "process", "stream"])[["depth", "complete"]].last()
    lacking = len(run.kernels) - len(latency(run.kernels, run.api_calls))
    assert -lacking == last["depth"].sum()
    assert (lacking == 0) == last["complete"].all()
