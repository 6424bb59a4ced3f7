"""Launch latency and queue depth, and those of real captures against Nsight Systems."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import loaded
from analysis.spans import span as spanned
from frames import api_calls, kernels, tuples
from real import CUT_DOWN, SQLITE, VECTOR_ADD, truth_of

from perfkit.analysis.host import LATENCY, latency, latency_summary, queue_depth


def span(start_ns: int, end_ns: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    return spanned(start_ns, end_ns, correlation=correlation, **more)


def random_tables(seed: int, count: int = 300) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Kernels of two processes on two devices, most of them with a call."""
    rng = np.random.default_rng(seed)
    calls, work = [], []
    drawn = rng.integers((0, 1, 1, 0, 0, 0, 1, 0), (50_000, 3, 4_000, 2_000, 2, 3, 3, 3_000), (count, 8)).tolist()
    for i, (called, process, later, dur, gpu, stream, thread, inside) in enumerate(drawn):
        start = called + later
        work.append(span(start, start + dur, i, process=process, gpu=gpu, stream=stream, name="abc"[i % 3]))
        if rng.random() < 0.9:
            name = ("cudaLaunchKernel", "cuLaunchKernel")[i % 2]
            calls.append(span(called, called + inside, i, process=process, thread=thread, name=name))
    return kernels(*work), api_calls(*calls)


def test_a_window_selects_kernels_by_their_start_and_cuts_none() -> None:
    work = kernels(span(9, 50, 1), span(10, 50, 2), span(20, 50, 3))
    got = latency(work, api_calls(*(span(i, i + 1, i) for i in (1, 2, 3))), window=(10, 20))
    assert [(2, 40)] == tuples(got, "correlation", "dur_ns")
    with pytest.raises(ValueError, match="by: 'family' is not one of name, full_name"):
        latency_summary(LATENCY.empty(), by="family")


def depths(*tables: pd.DataFrame, **more: Any) -> list[tuple[int, int]]:
    return tuples(queue_depth(*tables, **more), "time_ns", "depth")


def test_queue_depth_by_hand() -> None:
    work, made = [span(3, 9, 1), span(10, 19, 2), span(20, 30, 3)], [span(0, 1, 1), span(2, 3, 2), span(4, 5, 3)]
    tables = kernels(*work), api_calls(*made)
    assert [(0, 1), (2, 2), (3, 1), (4, 2), (10, 1), (20, 0)] == depths(*tables)
    assert queue_depth(*tables)["complete"].all()
    # A window begins with the depth it finds; steps at one time are one row.
    assert [[(3, 1), (4, 2)], [(5, 2)]] == [depths(*tables, window=window) for window in ((3, 10), (5, 8))]
    work = kernels(span(5, 6, 1), span(9, 10, 2))
    assert [(0, 1), (5, 1), (9, 0)] == depths(work, api_calls(span(0, 1, 1), span(5, 7, 2)))
    # A graph launch counts once on each device.
    nodes = span(10, 11, 1, stream=3), span(12, 13, 1, stream=4), span(14, 15, 1, stream=3), span(20, 21, 1, gpu=1)
    got = queue_depth(kernels(*nodes), api_calls(span(0, 5, 1, name="cudaGraphLaunch")))
    assert [(3, 0, 1), (3, 10, 0), (7, 0, 1), (7, 20, 0)] == tuples(got, "stream", "time_ns", "depth")
    # The call of the first kernel was not recorded: stream 7 goes to -1 and is marked; stream 8 is not.
    work = kernels(span(2, 3), span(6, 7, 1), span(6, 7, 2, stream=8))
    got = queue_depth(work, api_calls(span(4, 5, 1), span(5, 6, 2)))
    assert [(2, -1), (4, 0), (6, -1)] == tuples(got[got["stream"] == 7], "time_ns", "depth")
    assert {7: [False], 8: [True]} == got.groupby("stream")["complete"].unique().map(list).to_dict()


@pytest.mark.parametrize("window", [None, (10_000, 30_000)])
def test_queue_depth_equals_a_count_at_each_step(window: tuple[int, int] | None) -> None:
    work, calls = random_tables(2)
    got = queue_depth(work, calls, window=window)
    called = work.merge(calls, on=["rank", "process", "correlation"], suffixes=("", "_call"))
    keys = ["rank", "gpu", "process", "stream"]
    begun = {of: rows.to_numpy() for of, rows in work.groupby(keys)["start_ns"]}
    launched = {of: rows.to_numpy() for of, rows in called.groupby(keys)["start_ns_call"]}
    for of, steps in got.groupby(keys):
        for at, depth in zip(steps["time_ns"], steps["depth"], strict=True):
            assert (launched[of] <= at).sum() - (begun[of] <= at).sum() == depth
    if window is None:
        negative = got.groupby(keys)["depth"].min() < 0
        assert negative.any()
        assert (got.groupby(keys)["complete"].all() == ~negative).all()


CAPTURES = [c for c in SQLITE if c != CUT_DOWN]
# These exports hold each call of the runtime and, inside it, its versioned form (cudaLaunchKernel_v7000).
CALLED_TWICE = ["extra-p__extrap__ex-gpu.s10.sqlite", "hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite"]
QUANTITIES = {"T": "total", "A": "api", "Q": "queue", "K": "dur"}
REAL_STATISTICS = {"Avg": "mean", "Med": "median", "Min": "min", "Max": "max", "StdDev": "std"}
KEYS = {"PID": "process", "TID": "thread", "DevId": "gpu", "API Name": "api", "Kernel Name": "full_name"}
KEYS |= {"Count": "count", "QCount": "queue_count"}


def both(profiles: Path, capture: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The vendor's cuda_kern_exec_sum and our summary in the same columns and order."""
    run = loaded(profiles / "nsys" / capture)
    report = profiles / "golden" / "nsys" / capture.removesuffix(".sqlite") / "cuda_kern_exec_sum.csv"
    columns = {f"{v}{s} (ns)": f"{q}_{n}_ns" for v, q in QUANTITIES.items() for s, n in REAL_STATISTICS.items()}
    vendor = pd.read_csv(report).rename(columns=KEYS | columns)
    # It strips the version of a call's name where it has four digits (_v7000) and not where it has five (_v11060).
    vendor["api"] = vendor["api"].str.replace(r"_v\d{5}$", "", regex=True)
    vendor = vendor.sort_values(list(KEYS.values()), ignore_index=True)
    ours = latency_summary(latency(run.kernels, run.api_calls), by="full_name").drop(columns="rank")
    ours = ours.astype({"api": "object", "full_name": "object"}).sort_values(list(KEYS.values()), ignore_index=True)
    of_one = ours.columns[ours.columns.str.endswith("_std_ns")]  # 0.0 there
    ours[of_one] = ours[of_one].fillna(0.0)
    return vendor[ours.columns].astype(ours.dtypes), ours


@pytest.mark.parametrize("capture", CAPTURES)
def test_summary_equals_cuda_kern_exec_sum(profiles: Path, capture: str) -> None:
    vendor, ours = both(profiles, capture)
    same = ours.columns.tolist()
    if capture in CALLED_TWICE:
        assert vendor["count"].tolist() == [2 * count for count in ours["count"]]
        same = ["full_name", "api", "dur_min_ns", "dur_max_ns", "dur_median_ns", "dur_mean_ns", "api_max_ns"]
        same += ["total_max_ns"]  # from the start of the outer call
    pd.testing.assert_frame_equal(vendor[same], ours[same], rtol=0, atol=0.0501)


@pytest.mark.parametrize("capture", [*CAPTURES, VECTOR_ADD])
def test_latency_of_real_captures(profiles: Path, capture: str) -> None:
    run = loaded(profiles / "nsys" / capture)
    expected = truth_of(profiles, "nsys", capture)["launch"]
    rows = LATENCY.check(latency(run.kernels, run.api_calls))
    lacking = len(run.kernels) - len(rows)
    assert (expected["kernels_with_api_row"], expected["kernels_without"]) == (len(rows), lacking)
    delay = rows["delay_ns"]
    from_start = {"mean": delay.mean(), "median": delay.median(), "max": delay.max()}
    assert pytest.approx(expected["from_api_start"], rel=1e-12) == from_start
    assert expected["from_api_end"]["negative"] == rows["queue_ns"].isna().sum()
    # Every queue of a whole capture ends empty.
    last = queue_depth(run.kernels, run.api_calls).groupby(["gpu", "process", "stream"])[["depth", "complete"]].last()
    assert -lacking == last["depth"].sum()
    assert (lacking == 0) == last["complete"].all()
