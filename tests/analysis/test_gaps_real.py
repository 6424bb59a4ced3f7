"""Idle gaps of real captures against reference values and against Nsight Systems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from real import WITH_KERNELS as CAPTURES

import perfkit
from perfkit.analysis.causes import determinable
from perfkit.analysis.gaps import GAPS, idle_by_cause, idle_gaps

LONGER_THAN_NS = {"gt_10us": 10_000, "gt_100us": 100_000, "gt_1ms": 1_000_000}


def gaps_of(capture: Path) -> pd.DataFrame:
    """All gaps of a capture, with ranges."""
    run = perfkit.load(capture)
    return GAPS.check(idle_gaps(run.kernels, run.copies, run.api_calls, ranges=run.ranges))


def truth_of(profiles: Path, capture: str) -> dict[int, dict[str, Any]]:
    """Reference values per device."""
    path = profiles / "golden" / "nsys" / f"{capture.removesuffix('.sqlite')}.truth.json"
    return {int(gpu): of for gpu, of in json.loads(path.read_text())["devices"].items()}


@pytest.mark.parametrize("capture", CAPTURES)
def test_gaps_of_real_captures(profiles: Path, capture: str) -> None:
    """Idle time, count and length of the long gaps and the five longest equal an independent computation."""
    gaps, truth = gaps_of(profiles / "nsys" / capture), truth_of(profiles, capture)
    assert set(gaps["gpu"]) == set(truth)
    for gpu, expected in truth.items():
        own = gaps[gaps["gpu"] == gpu]
        assert expected["idle_in_span"] == own["dur_ns"].sum() == idle_by_cause(own)["total_ns"].sum()
        for name, limit in LONGER_THAN_NS.items():
            longer = own["dur_ns"][own["dur_ns"] > limit]
            assert expected["gaps"][name] == {"count": len(longer), "total": longer.sum()}
        longest = own.nlargest(5, "dur_ns")[["start_ns", "dur_ns"]].to_numpy().tolist()
        assert [[gap["start"], gap["duration"]] for gap in expected["longest_gaps"]] == longest


@pytest.mark.parametrize("capture", CAPTURES)
def test_gaps_that_nsight_systems_lists_are_found(profiles: Path, capture: str) -> None:
    """Every gap above 1 ms in the vendor's list is one of ours.

    Its list stops at 50 rows and counts the profiler's own overhead as busy, so that it may hold fewer; it looks
    at each process alone, which makes no difference in these captures: none has two processes on a device.
    """
    report = profiles / "golden" / "nsys" / capture.removesuffix(".sqlite") / "gpu_gaps_gap1.csv"
    if not report.exists():
        pytest.skip("the vendor's report is empty or fails on this capture")
    gaps = gaps_of(profiles / "nsys" / capture)
    ours = set(gaps[["gpu", "start_ns", "dur_ns"]].itertuples(index=False, name=None))
    vendor = pd.read_csv(report)[["Device ID", "Start (ns)", "Duration (ns)"]].itertuples(index=False, name=None)
    assert set(vendor) <= ours


def test_causes_of_a_training_run(profiles: Path) -> None:
    """The training job waits for its DataLoader 70 % of its idle time, and for evaluation on the CPU most of the rest.

    Its longest gap, 2.48 s, lies in the range "Test"; causes rest on complete calls.
    """
    run = perfkit.load(profiles / "nsys" / "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite")
    gaps = idle_gaps(run.kernels, run.copies, run.api_calls, ranges=run.ranges)
    first = idle_by_cause(gaps).iloc[0]
    assert (first["cause"], first["detail"], first["count"]) == ("host_wait", "data_loading", 58)
    assert pytest.approx(0.70, abs=0.005) == first["share_frac"]
    longest = gaps.loc[gaps["dur_ns"].idxmax()]
    assert (longest["range"], longest["detail"], longest["dur_ns"]) == ("Test", "host_code", 2_482_066_991)
    assert determinable(run.kernels, run.copies, run.api_calls).yes


def test_gaps_before_kernels_without_call_are_unattributed(profiles: Path) -> None:
    """24 kernels of this slice were launched before it began; their gaps have no cause, 55 us of 57 ms."""
    gaps = gaps_of(profiles / "nsys" / "GindaChen__nsys-ai__mfu_2gpu_before.sqlite")
    unknown = gaps[gaps["cause"] == "unattributed"]
    assert (len(unknown), unknown["dur_ns"].sum(), set(unknown["thread"])) == (29, 55_296, {-1})
