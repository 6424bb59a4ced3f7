"""Memory access of a launch held against its targets, and the metric table of the performance guide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
SECTORS, USED = (
    "memory_l2_theoretical_sectors_global",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",
)
THREADS, HIT = "smsp__thread_inst_executed_per_inst_executed.ratio", "lts__t_sector_hit_rate.pct"


def judged(**of_check: float) -> pd.DataFrame:
    """The checks of one launch with these counters, by name."""
    return checks(launches({}), counters(of_check)).set_index("check")


def loads(sectors: float, requests: float) -> dict[str, float]:
    """Counters of global loads."""
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
        *(("active_lanes_frac", {THREADS: n}, n / 32, "met" if n >= 24 else "missed") for n in (32, 24, 23.9, 1)),
    ],
)
def test_verdicts_by_hand(check: str, said: dict[str, float], value: float, verdict: str) -> None:
    """Each figure is its counters' quotient, and its verdict the comparison with the target."""
    found = judged(**said).loc[check]
    assert pytest.approx(value, nan_ok=True) == found["value"]
    assert verdict == found["verdict"]
    assert check != "load_sectors_per_request" or 4 == found["target"]


def test_what_is_not_measured_says_how() -> None:
    """Without counters every check names the options that record it."""
    found = checks(launches({}), COUNTERS.empty())
    assert ["not measured"] == found["verdict"].unique().tolist()
    assert list(VERDICTS) == found["verdict"].cat.categories.tolist()
    assert found["value"].isna().all()
    assert all(
        f"`{measure}`" in said and "ncu --" in measure
        for measure, said in zip(found["measure"], found["sentence"], strict=True)
    )


def test_launches_are_judged_on_their_own() -> None:
    """A second launch, of another rank or without counters, does not change the first one's rows."""
    table = launches({}, {"rank": 0}, {"rank": 1, "launch": 0})
    found = checks(table, counters(loads(4, 1)))
    assert 3 * 8 == len(found)
    measured = found[found["verdict"].ne("not measured")]
    assert [(0, 0, "load_sectors_per_request")] == tuples(measured, "rank", "launch", "check")
    pd.testing.assert_frame_equal(checks(table.iloc[:1], counters(loads(4, 1))), found.iloc[:8])


@pytest.mark.parametrize("name", ["thedavidchu__speedy_scan__profile", "eschnett__IndexSpaces.jl__profile"])
def test_active_lanes_of_a_real_report(name: str, profiles: Path) -> None:
    """By NVIDIA's own module: threads per instruction over 32."""
    vendor = pytest.importorskip("ncu_report")
    file = profiles / "ncu" / f"{name}.ncu-rep"
    every = [action for of in vendor.load_report(str(file)) for action in of]
    raw = [action.metric_by_name(THREADS).as_double() / 32 for action in every]
    run = perfkit.load(file)
    found = checks(run.launches, run.counters)
    lanes = found[found["check"] == "active_lanes_frac"]
    assert lanes["value"].tolist() == pytest.approx(raw)
    assert lanes["verdict"].tolist() == ["met" if value >= 0.75 else "missed" for value in raw]


def verdicts(row: dict[str, Any], *counted: dict[str, float], waits: dict[str, float] | None = None) -> pd.DataFrame:
    """The six checks of one launch, by name of the check."""
    table = target_checks(launches(row), counters(*counted), None if waits is None else stalls(waits))
    return table.set_index(table["check"].astype(str))


def test_worked_by_hand() -> None:
    """A memory-bound GEMM: SM 62 % of 80 missed, tensor 90 % of 85 met, DRAM 76 % of 75 met, L2 hit 50 % missed,
    occupancy 51 % met; long_scoreboard is 6 of 6 + 3 + 1 cycles = 60 %, above 30: missed.
    """
    row = {"name": "ampere_sgemm_128x64_nn", "sm_frac": 0.62, "tensor_frac": 0.9, "dram_frac": 0.76}
    row |= {"memory_frac": 0.78, "achieved_occupancy_frac": 0.51}
    found = verdicts(row, {HIT: 50}, waits={"long_scoreboard": 6, "wait": 3, "selected": 1})
    assert list(TARGETS) == found.index.tolist()
    assert list(TARGET_VERDICTS) == found["verdict"].cat.categories.tolist()
    assert ["missed", "met", "met", "missed", "met", "missed"] == found["verdict"].tolist()
    assert [0.62, 0.9, 0.76, 0.5, 0.51, 0.6] == pytest.approx(found["value_frac"].tolist(), rel=1e-15)
    assert [0.8, 0.85, 0.75, 0.5, 0.5, 0.3] == found["target_frac"].tolist()
    assert ["", "", "", "", "", "long_scoreboard"] == found["detail"].tolist()


def test_what_does_not_apply_or_was_not_measured() -> None:
    """Without counters every check that applies says how to measure it."""
    # An elementwise kernel is not asked for tensor cores; a GEMM that leaves them idle misses, with the value 0. Four
    # reasons of a quarter each: the first of them has 25 %, under 30.
    found = verdicts({"name": "sgemm"})
    assert {"not measured"} == set(found["verdict"])
    assert "record with `ncu --section WarpStateStats`" == found.loc["largest_stall", "detail"]
    assert found["value_frac"].isna().all()
    columns = ["verdict", "value_frac", "detail"]
    for row, waits, check, expected in (
        (
            {"name": "vectorized_elementwise_kernel", "tensor_frac": 0.0},
            None,
            "tensor_use",
            ["not applicable", 0, "its name does not say matrix product"],
        ),
        ({"name": "sgemm", "tensor_frac": 0}, None, "tensor_use", ["missed", 0, ""]),
        ({}, dict.fromkeys(("wait", "barrier", "drain", "sleeping"), 1), "largest_stall", ["met", 0.25, "barrier"]),
    ):
        assert expected == verdicts(row, waits=waits).loc[check, columns].tolist()


@pytest.mark.parametrize(
    ("sm", "memory", "verdict"),
    [(0.2, 0.7, "missed"), (0.7, 0.2, "not applicable"), (0.1, 0.1, "not applicable"), (np.nan, 0.9, "not measured")],
)
def test_dram_is_asked_where_memory_limits(sm: float, memory: float, verdict: str) -> None:
    """The vendor's rule decides whether memory limits the launch; the value is shown all the same."""
    found = verdicts({"sm_frac": sm, "memory_frac": memory, "dram_frac": 0.5}).loc["dram_throughput"]
    assert (verdict, 0.5) == (found["verdict"], found["value_frac"])


def test_verdicts_equal_a_comparison_row_by_row() -> None:
    """On 200 made-up launches every check equals `value > target` of its launch, the last of which has no hit rate."""
    random = np.random.default_rng(5)
    columns = {"sm_frac": "sm_throughput", "tensor_frac": "tensor_use", "achieved_occupancy_frac": "occupancy"}
    rows = [dict(zip(columns, random.random(3), strict=True)) | {"name": "sgemm"} for _ in range(200)]
    hits = random.uniform(0, 100, 199).tolist()
    found = target_checks(launches(*rows), counters(*({HIT: hit} for hit in hits)))
    verdict = found.set_index(["launch", "check"])["verdict"]
    for i, row in enumerate(rows):
        asked = {name: row[column] for column, name in columns.items()}
        asked |= {"l2_hit": hits[i] / 100} if i < 199 else {}
        for name, value in asked.items():
            assert ("met" if value > TARGETS[name] else "missed") == verdict[i, name]
    assert "not measured" == verdict[199, "l2_hit"]


def test_impossible_values_are_reported() -> None:
    """A hit rate of 500 % and a negative throughput are errors that name the launch and the check."""
    with pytest.raises(PerfkitError, match="launch 0: l2_hit is 5, not a fraction"):
        verdicts({}, {HIT: 500})
    with pytest.raises(PerfkitError, match=r"launch 0: sm_throughput is -0\.1"):
        verdicts({"sm_frac": -0.1})
