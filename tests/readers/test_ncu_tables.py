"""COUNTERS, STALLS, RULES, DEVICES and CAPTURE, and what is named as missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from readers import ncu_files as files

import perfkit


def stalls(folder: Path, *launches: files.Metrics) -> dict[tuple[int, str], float]:
    """STALLS of launches with these metrics, by launch and reason."""
    written = [files.Measured({"x.sum": ("", "1"), **metrics}, number=i) for i, metrics in enumerate(launches)]
    table = files.read(files.raw(folder / "stalls.csv", *written)).table("STALLS")
    assert (table["node"] == -1).all()
    return dict(zip(zip(table["launch"], table["reason"], strict=True), table["value"], strict=True))


def test_counters_hold_every_number_but_most_device_attributes(tmp_path: Path) -> None:
    """Also what LAUNCHES is made of, in base units; texts are left out, and attributes that limit no SM."""
    metrics = {**files.DEVICE, "a.sum": ("Kbyte", "1.5"), "b.avg.per_second": ("cycle/us", "2"), "c": ("", "all")}
    table = files.read(files.raw(tmp_path / "page.csv", files.Measured(metrics))).table("COUNTERS")
    rows = list(zip(table["metric"], table["unit"], table["value"], strict=True))
    limit = ("device__attribute_multiprocessor_count", "", 108.0)
    assert [("a.sum", "byte", 1500.0), ("b.avg.per_second", "hz", 2e6), limit] == rows


def test_counters_that_one_launch_lacks(tmp_path: Path) -> None:
    """Launches of one page may have different metrics: a row only where there is a value."""
    launches = [files.Measured({name: ("", "1")}, number=i) for i, name in enumerate(("a.sum", "b.sum"))]
    table = files.read(files.details(tmp_path / "page.csv", *launches)).table("COUNTERS")
    assert [(0, "a.sum"), (1, "b.sum")] == list(zip(table["launch"], table["metric"], strict=True))


def test_stalls_per_issue_come_before_samples(tmp_path: Path) -> None:
    """A launch with both forms has the ratios; the samples stay among the counters."""
    both = {files.ISSUE.format("barrier"): ("inst", "20.5"), files.SAMPLED.format("barrier"): ("warp", "13326")}
    assert {(0, "barrier"): 20.5} == stalls(tmp_path, both)
    counters = files.read(tmp_path / "stalls.csv").table("COUNTERS")
    assert files.SAMPLED.format("barrier") in set(counters["metric"])


def test_stalls_of_each_launch_are_of_one_form(tmp_path: Path) -> None:
    """Ratios for one launch, samples for another: no launch mixes them."""
    ratio = {files.ISSUE.format("wait"): ("inst", "2")}
    samples = {files.SAMPLED.format("wait"): ("warp", "7"), files.SAMPLED.format("drain"): ("warp", "8")}
    mixed = {**ratio, files.SAMPLED.format("drain"): ("warp", "9")}
    expected = {(0, "wait"): 2.0, (1, "wait"): 7.0, (1, "drain"): 8.0, (2, "wait"): 2.0}
    assert expected == stalls(tmp_path, ratio, samples, mixed)


def test_reasons_have_one_spelling(tmp_path: Path) -> None:
    """The sampled form says no_instructions, the other no_instruction."""
    sampled = {files.SAMPLED.format("no_instructions"): ("inst", "155")}
    per_issue = {files.ISSUE.format("no_instruction"): ("inst", "0.5")}
    assert {(0, "no_instruction"): 155.0, (1, "no_instruction"): 0.5} == stalls(tmp_path, sampled, per_issue)


def test_parts_of_a_reason_are_not_counted_beside_it(tmp_path: Path) -> None:
    """Samples of warps that could not issue, and reasons by pipe, are parts; math_pipe_throttle is a whole."""
    metrics = {
        files.SAMPLED.format("math_pipe_throttle"): ("warp", "9"),
        files.SAMPLED.format("math_pipe_throttle_not_issued"): ("warp", "4"),
        files.SAMPLED.format("math_pipe_throttle_pipe_fma"): ("warp", "3"),
        files.SAMPLED.format("long_scoreboard_pipe_l1tex"): ("warp", "2"),
    }
    assert {(0, "math_pipe_throttle"): 9.0} == stalls(tmp_path, metrics)


@pytest.mark.parametrize(
    "metric",
    [
        "smsp__average_warp_latency_issue_stalled_wait.ratio",
        "smsp__pcsamp_warps_issue_stalled_wait_not_issued",
        "smsp__warp_issue_stalled_wait_per_warp_active.pct",
    ],
)
def test_other_forms_of_stalls(metric: str, tmp_path: Path) -> None:
    """Warp cycles, samples that did not issue and shares are used where nothing else was collected."""
    assert {(0, "wait"): 3.0} == stalls(tmp_path, {metric: ("", "3")})


def test_rules_with_and_without_estimates(tmp_path: Path) -> None:
    """18.52 % local is 0.1852 of the kernel, 50 % global half of the workload; none is NaN without a scope."""
    given = [
        ("AchievedOccupancy", "OPT", "theory and practice", "local", "18.52"),
        ("LaunchConfiguration", "OPT", "a partial wave", "global", "50"),
        ("SOLBottleneck", "WRN", "small grid", "", ""),
    ]
    profile = files.read(files.details(tmp_path / "page.csv", replace(files.full(), rules=tuple(given))))
    rules = profile.table("RULES")
    assert [name for name, *_ in given] == rules["rule"].tolist()
    assert [text for _, _, text, *_ in given] == rules["message"].tolist()
    assert [0.1852, 0.5] == pytest.approx(rules["speedup_frac"].tolist()[:2])
    assert rules["speedup_frac"].isna().tolist() == [False, False, True]
    assert ["kernel", "workload"] == rules["scope"].tolist()[:2]
    assert rules["scope"].isna().tolist() == [False, False, True]


def test_a_device_from_its_attributes(tmp_path: Path) -> None:
    """1215 MHz * 2 transfers * 5120 bits / 8 = 1,555.2 GB/s; one row per GPU, however many launches."""
    launches = [replace(files.full(i), device=str(i % 2)) for i in range(4)]
    devices = files.read(files.raw(tmp_path / "page.csv", *launches)).table("DEVICES")
    assert [0, 1] == devices["gpu"].tolist()
    row = devices.iloc[0]
    assert ("NVIDIA A100-SXM4-40GB", "8.0", 108) == (row["name"], row["compute_capability"], row["sm_count"])
    assert (42_505_273_344, 1_555_200_000_000.0, 1.41e9) == tuple(row.iloc[-3:])


def test_the_capture_has_no_clock(tmp_path: Path) -> None:
    """Launches are measured one by one: no start, no length."""
    path = files.raw(tmp_path / "page.csv", files.full())
    row = files.read(path).capture.iloc[0]
    assert ("Nsight Compute", "", str(path), 0) == (row["tool"], row["tool_version"], row["path"], row["dur_ns"])
    assert row[["t0_unix_ns"]].isna().all()


def test_what_is_missing_says_how_to_record_it(tmp_path: Path) -> None:
    """A launch with a time only: operations, traffic, stalls, rules and the GPU are missing, each with an option."""
    path = files.details(tmp_path / "page.csv", files.Measured({"gpu__time_duration.sum": ("ns", "5")}))
    missing = {m.table: m.record for m in files.read(path).missing}
    quantities = [f"LAUNCHES.{column}" for column in ("fp32_flops", "tensor_flops", "dram_bytes")]
    assert [*quantities, "STALLS", "RULES", "DEVICES"] == list(missing)
    assert "sm__sass_thread_inst_executed_op_ffma_pred_on.sum" in missing["LAUNCHES.fp32_flops"]
    assert all(record.startswith("ncu ") for record in missing.values())


def test_one_precision_is_enough(tmp_path: Path) -> None:
    """A page with double-precision counters alone is not told to record operations."""
    metrics = {f"{files.CORE}d{op}_pred_on.sum": ("inst", "1") for op in ("add", "mul", "fma")}
    path = files.raw(tmp_path / "page.csv", files.Measured(metrics))
    tables = [m.table for m in files.read(path).missing]
    assert "LAUNCHES.fp32_flops" not in tables
    assert "LAUNCHES.dur_ns" in tables


def test_a_run_names_what_its_launches_lack(tmp_path: Path) -> None:
    """perfkit.load keeps what single columns lack, also from the cache."""
    path = files.raw(tmp_path / "page.csv", files.Measured({"gpu__time_duration.sum": ("ns", "5")}))
    first, second = perfkit.load(path), perfkit.load(path)
    assert first.missing == second.missing
    assert "LAUNCHES.dram_bytes" in {m.table for m in second.missing}
    assert [5.0] == second.launches["dur_ns"].tolist()
