"""Launch latency of real captures against reference values and against cuda_kern_exec_sum of Nsight Systems."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from real import CUT_DOWN, SQLITE

import perfkit
from perfkit.analysis.launches import LATENCY, latency, queue_depth, summary, unlaunched

CAPTURES = [c for c in SQLITE if c != CUT_DOWN]
# These exports hold each call of the runtime and, inside it, its versioned form (cudaLaunchKernel_v7000).
CALLED_TWICE = ["extra-p__extrap__ex-gpu.s10.sqlite", "hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite"]
QUANTITIES = {"T": "total", "A": "api", "Q": "queue", "K": "dur"}
STATISTICS = {"Avg": "mean", "Med": "median", "Min": "min", "Max": "max", "StdDev": "std"}
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
    columns = {f"{v}{s} (ns)": f"{q}_{n}_ns" for v, q in QUANTITIES.items() for s, n in STATISTICS.items()}
    vendor = pd.read_csv(report).rename(columns=KEYS | columns)
    vendor["api"] = vendor["api"].str.replace(r"_v\d{5}$", "", regex=True)
    vendor = vendor.sort_values(list(KEYS.values()), ignore_index=True)
    ours = summary(latency(run.kernels, run.api_calls), by="full_name").drop(columns="rank")
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
    assert expected["kernels_without"] == unlaunched(run.kernels, run.api_calls)["count"].sum()
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
    lacking = int(unlaunched(run.kernels, run.api_calls)["count"].sum())
    assert -lacking == last["depth"].sum()
    assert (lacking == 0) == last["complete"].all()
