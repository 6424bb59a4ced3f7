"""Launch latency by hand, and that of real captures against Nsight Systems."""

from pathlib import Path

import pandas as pd
import pytest
from analysis.spans import loaded, span
from frames import api_calls, kernels, tuples
from real import CUT_DOWN, SQLITE, VECTOR_ADD, truth_of

from perfkit.analysis.host import LATENCY, latency, latency_summary


def test_a_window_selects_kernels_by_their_start_and_cuts_none() -> None:
    work = kernels(span(9, 50, 1), span(10, 50, 2), span(20, 50, 3))
    got = latency(work, api_calls(*(span(i, i + 1, i) for i in (1, 2, 3))), window=(10, 20))
    assert [(2, 40)] == tuples(got, "correlation", "dur_ns")


CAPTURES = [c for c in SQLITE if c != CUT_DOWN]
# These exports hold each call of the runtime and, inside it, its versioned form (cudaLaunchKernel_v7000).
CALLED_TWICE = [
    "extra-p__extrap__ex-gpu.s10.sqlite",
    "hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite",
]
QUANTITIES = {"T": "total", "A": "api", "Q": "queue", "K": "dur"}
REAL_STATISTICS = {"Avg": "mean", "Med": "median", "Min": "min", "Max": "max", "StdDev": "std"}
KEYS = {
    "PID": "process",
    "TID": "thread",
    "DevId": "gpu",
    "API Name": "api",
    "Kernel Name": "full_name",
}
KEYS |= {"Count": "count", "QCount": "queue_count"}


def both(profiles: Path, capture: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The vendor's cuda_kern_exec_sum and our summary in the same columns and order."""
    run = loaded(profiles / "nsys" / capture)
    report = (
        profiles / "golden" / "nsys" / capture.removesuffix(".sqlite") / "cuda_kern_exec_sum.csv"
    )
    columns = {
        f"{v}{s} (ns)": f"{q}_{n}_ns"
        for v, q in QUANTITIES.items()
        for s, n in REAL_STATISTICS.items()
    }
    vendor = pd.read_csv(report).rename(columns=KEYS | columns)
    # It strips the version of a call's name where it has four digits (_v7000) and not where it has five (_v11060).
    vendor["api"] = vendor["api"].str.replace(r"_v\d{5}$", "", regex=True)
    vendor = vendor.sort_values(list(KEYS.values()), ignore_index=True)
    of_kernels = latency(run.kernels, run.api_calls)
    ours = latency_summary(of_kernels.assign(name=of_kernels["full_name"])).drop(columns="rank")
    ours = ours.rename(columns={"name": "full_name"})
    ours = ours.astype({"api": "object", "full_name": "object"}).sort_values(
        list(KEYS.values()), ignore_index=True
    )
    of_one = ours.columns[ours.columns.str.endswith("_std_ns")]  # 0.0 there
    ours[of_one] = ours[of_one].fillna(0.0)
    return vendor[ours.columns].astype(ours.dtypes), ours


@pytest.mark.parametrize("capture", CAPTURES)
def test_summary_equals_cuda_kern_exec_sum(profiles: Path, capture: str) -> None:
    vendor, ours = both(profiles, capture)
    same = ours.columns.tolist()
    if capture in CALLED_TWICE:
        assert vendor["count"].tolist() == [2 * count for count in ours["count"]]
        same = [
            "full_name",
            "api",
            "dur_min_ns",
            "dur_max_ns",
            "dur_median_ns",
            "dur_mean_ns",
            "api_max_ns",
        ]
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
