"""Memory access of a launch held against its targets, and the metric table of the performance guide."""

import importlib
from pathlib import Path
from typing import Any

import extras
import numpy as np
import pandas as pd
import pytest
from counted import counters, launches, stalls
from frames import tuples

import perfkit
from perfkit.analysis.access import TARGET_VERDICTS, TARGETS, VERDICTS, checks, target_checks
from perfkit.errors import PerfkitError
from perfkit.tables import COUNTERS

LOAD = "l1tex__t_{}_pipe_lsu_mem_global_op_ld.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
SECTORS = "memory_l2_theoretical_sectors_global"
USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
THREADS, HIT = "smsp__thread_inst_executed_per_inst_executed.ratio", "lts__t_sector_hit_rate.pct"


def judged(**of_check: float) -> pd.DataFrame:
    return checks(launches({}), counters(of_check)).set_index("check")


def loads(sectors: float, requests: float) -> dict[str, float]:
    return {LOAD.format("sectors"): sectors, LOAD.format("requests"): requests}


@pytest.mark.parametrize(
    ("check", "said", "value", "verdict"),
    [
        # 1,000 requests: 4 sectors each are coalesced floats, 8 and 16 may be wider types, 32 are scattered.
        ("load_sectors_per_request", loads(4000, 1000), 4.0, "met"),
        ("load_sectors_per_request", loads(8000, 1000), 8.0, "unclear"),
        ("load_sectors_per_request", loads(16000, 1000), 16.0, "unclear"),
        ("load_sectors_per_request", loads(32000, 1000), 32.0, "missed"),
        ("load_sectors_per_request", loads(0, 1000), 0.0, "met"),
        ("load_sectors_per_request", loads(0, 0), np.nan, "unused"),
        ("store_sectors_per_request", loads(4, 1), np.nan, "not measured"),
        ("bank_conflicts_frac", {CONFLICTS: 5, WAVEFRONTS: 100}, 0.05, "met"),
        ("bank_conflicts_frac", {CONFLICTS: 50, WAVEFRONTS: 100}, 0.5, "missed"),
        ("bank_conflicts_frac", {CONFLICTS: 0}, 0.0, "met"),
        ("bank_conflicts_frac", {CONFLICTS: 7}, np.nan, "not measured"),
        ("bank_conflicts_frac", {CONFLICTS: 0, WAVEFRONTS: 0}, np.nan, "unused"),
        ("bank_conflicts_frac", {CONFLICTS: 300, WAVEFRONTS: 100}, 3.0, "contradictory"),
        ("excess_sectors_frac", {SECTORS: 100, f"{SECTORS}_ideal": 25}, 0.75, "missed"),
        ("excess_sectors_frac", {SECTORS: 100, f"{SECTORS}_ideal": 100}, 0.0, "met"),
        ("sector_use_frac", {USED: 8}, 0.25, "missed"),
        ("sector_use_frac", {USED: 32}, 1.0, "met"),
        ("l1_hit_frac", {"l1tex__t_sector_hit_rate.pct": 12.5}, 0.125, "no target"),
        ("l2_hit_frac", {HIT: 50}, 0.5, "met"),
        ("l2_hit_frac", {HIT: 49}, 0.49, "missed"),
        ("l2_hit_frac", {HIT: 101}, 1.01, "contradictory"),
        # 24 of 32 threads are the target; one thread per instruction is a warp of which 31 wait.
        *(
            ("active_lanes_frac", {THREADS: n}, n / 32, "met" if n >= 24 else "missed")
            for n in (32, 24, 23.9, 1)
        ),
    ],
)
def test_verdicts_by_hand(check: str, said: dict[str, float], value: float, verdict: str) -> None:
    found = judged(**said).loc[check]
    assert pytest.approx(value, nan_ok=True) == found["value"]
    assert verdict == found["verdict"]
    assert check != "load_sectors_per_request" or 4 == found["target"]


def test_what_is_not_measured_says_how() -> None:
    found = checks(launches({}), COUNTERS.empty())
    assert ["not measured"] == found["verdict"].unique().tolist()
    assert list(VERDICTS) == found["verdict"].cat.categories.tolist()
    assert found["value"].isna().all()
    for measure, said in tuples(found, "measure", "sentence"):
        assert f"`{measure}`" in said
        assert "ncu --" in measure
    # Launches are judged on their own.
    table = launches({}, {"rank": 0}, {"rank": 1, "launch": 0})
    found = checks(table, counters(loads(4, 1)))
    assert 3 * 8 == len(found)
    measured = found[found["verdict"].ne("not measured")]
    assert [(0, 0, "load_sectors_per_request")] == tuples(measured, "rank", "launch", "check")
    pd.testing.assert_frame_equal(checks(table.iloc[:1], counters(loads(4, 1))), found.iloc[:8])


@pytest.mark.parametrize(
    "name", ["thedavidchu__speedy_scan__profile", "eschnett__IndexSpaces.jl__profile"]
)
def test_active_lanes_of_a_real_report(name: str, profiles: Path) -> None:
    extras.require("ncu_report")
    vendor = importlib.import_module("ncu_report")
    file = profiles / "ncu" / f"{name}.ncu-rep"
    every = [action for of in vendor.load_report(str(file)) for action in of]
    raw = [action.metric_by_name(THREADS).as_double() / 32 for action in every]
    run = perfkit.load(file)
    found = checks(run.launches, run.counters)
    lanes = found[found["check"] == "active_lanes_frac"]
    assert lanes["value"].tolist() == pytest.approx(raw)
    assert lanes["verdict"].tolist() == ["met" if value >= 0.75 else "missed" for value in raw]


def verdicts(
    row: dict[str, Any], *counted: dict[str, float], waits: dict[str, float] | None = None
) -> pd.DataFrame:
    table = target_checks(
        launches(row), counters(*counted), None if waits is None else stalls(waits)
    )
    return table.set_index(table["check"].astype(str))


def test_targets_by_hand() -> None:
    row = {"name": "ampere_sgemm_128x64_nn", "sm_frac": 0.62, "tensor_frac": 0.9, "dram_frac": 0.76}
    row |= {"memory_frac": 0.78, "achieved_occupancy_frac": 0.51}
    found = verdicts(row, {HIT: 50}, waits={"long_scoreboard": 6, "wait": 3, "selected": 1})
    assert list(TARGETS) == found.index.tolist()
    assert list(TARGET_VERDICTS) == found["verdict"].cat.categories.tolist()
    assert ["missed", "met", "met", "missed", "met", "missed"] == found["verdict"].tolist()
    assert [0.62, 0.9, 0.76, 0.5, 0.51, 0.6] == pytest.approx(
        found["value_frac"].tolist(), rel=1e-15
    )
    assert [0.8, 0.85, 0.75, 0.5, 0.5, 0.3] == found["target_frac"].tolist()
    assert ["", "", "", "", "", "long_scoreboard"] == found["detail"].tolist()
    # Launches are judged on their own: the second has no hit rate and no stall.
    rows = (
        {"name": "sgemm", "sm_frac": 0.9, "tensor_frac": 0.1},
        {"sm_frac": 0.1, "tensor_frac": 0.2},
    )
    both = target_checks(launches(*rows), counters({HIT: 60}), stalls({"wait": 1}))
    assert both["target_frac"].tolist() == 2 * list(TARGETS.values())
    measured = both[both["value_frac"].notna()]
    assert tuples(measured, "launch", "check", "verdict") == [
        *((0, "sm_throughput", "met"), (0, "tensor_use", "missed"), (0, "l2_hit", "met")),
        *(
            (0, "largest_stall", "missed"),
            (1, "sm_throughput", "missed"),
            (1, "tensor_use", "not applicable"),
        ),
    ]
    above = (0.2, 0.7, "missed"), (0.7, 0.2, "not applicable"), (0.1, 0.1, "not applicable")
    for sm, memory, verdict in (*above, (np.nan, 0.9, "not measured")):
        found = verdicts({"sm_frac": sm, "memory_frac": memory, "dram_frac": 0.5}).loc[
            "dram_throughput"
        ]
        assert (verdict, 0.5) == (found["verdict"], found["value_frac"])
    for row, counted, why in (
        ({}, [{HIT: 500}], "l2_hit is 5, "),
        ({"sm_frac": -0.1}, [], r"sm_throughput is -0\.1"),
    ):
        with pytest.raises(PerfkitError, match=f"launch 0: {why}"):
            verdicts(row, *counted)


def test_what_does_not_apply_or_was_not_measured() -> None:
    found = verdicts({"name": "sgemm"})
    assert {"not measured"} == set(found["verdict"])
    command = "ncu --section WarpStateStats -o report PROGRAM"
    assert f"record with `{command}`" == found.loc["largest_stall", "detail"]
    assert found["value_frac"].isna().all()
    columns, no_gemm = ["verdict", "value_frac", "detail"], "its name does not say matrix product"
    waits = dict.fromkeys(("wait", "barrier", "drain", "sleeping"), 1)
    elementwise = {"name": "vectorized_elementwise_kernel", "tensor_frac": 0.0}
    assert ["not applicable", 0, no_gemm] == verdicts(elementwise).loc[
        "tensor_use", columns
    ].tolist()
    assert ["missed", 0, ""] == verdicts({"name": "sgemm", "tensor_frac": 0}).loc[
        "tensor_use", columns
    ].tolist()
    assert ["met", 0.25, "barrier"] == verdicts({}, waits=waits).loc[
        "largest_stall", columns
    ].tolist()
