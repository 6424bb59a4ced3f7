"""Memory access of a launch held against its targets, and the metric table of the performance guide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from counted import counters, launches, stalls

import perfkit
from perfkit.analysis.access import TARGET_VERDICTS, TARGETS, VERDICTS, checks, target_checks
from perfkit.errors import PerfkitError
from perfkit.tables import COUNTERS

LOAD = "l1tex__t_{}_pipe_lsu_mem_global_op_ld.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
SECTORS = "memory_l2_theoretical_sectors_global"
USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"


def judged(**of_check: float) -> pd.DataFrame:
    """The checks of one launch with these counters, by name."""
    return checks(launches({}), counters(of_check)).set_index("check")


def loads(sectors: float, requests: float) -> dict[str, float]:
    """Counters of global loads."""
    return {LOAD.format("sectors"): sectors, LOAD.format("requests"): requests}


@pytest.mark.parametrize(
    ("sectors", "verdict"), [(4000, "met"), (8000, "unclear"), (16000, "unclear"), (32000, "missed"), (0, "met")]
)
def test_sectors_per_request_by_hand(sectors: int, verdict: str) -> None:
    """1,000 requests: 4 sectors each are coalesced floats, 8 and 16 may be wider types, 32 are scattered."""
    found = judged(**loads(sectors, 1000)).loc["load_sectors_per_request"]
    assert (sectors / 1000, verdict, 4) == (found["value"], found["verdict"], found["target"])


@pytest.mark.parametrize(
    ("check", "said", "value", "verdict"),
    [
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
        ("load_sectors_per_request", loads(0, 0), np.nan, "unused"),
        ("store_sectors_per_request", loads(4, 1), np.nan, "not measured"),
        ("l1_hit_frac", {"l1tex__t_sector_hit_rate.pct": 12.5}, 0.125, "no target"),
        ("l2_hit_frac", {"lts__t_sector_hit_rate.pct": 50}, 0.5, "met"),
        ("l2_hit_frac", {"lts__t_sector_hit_rate.pct": 49}, 0.49, "missed"),
        ("l2_hit_frac", {"lts__t_sector_hit_rate.pct": 101}, 1.01, "contradictory"),
    ],
)
def test_verdicts_by_hand(check: str, said: dict[str, float], value: float, verdict: str) -> None:
    """Each figure is its counters' quotient, and its verdict the comparison with the target."""
    found = judged(**said).loc[check]
    assert pytest.approx(value, nan_ok=True) == found["value"]
    assert verdict == found["verdict"]


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
    assert [(0, 0, "load_sectors_per_request")] == list(
        measured[["rank", "launch", "check"]].itertuples(index=False, name=None)
    )
    pd.testing.assert_frame_equal(checks(table.iloc[:1], counters(loads(4, 1))), found.iloc[:8])


@pytest.mark.parametrize(("threads", "verdict"), [(32, "met"), (24, "met"), (23.9, "missed"), (1, "missed")])
def test_active_lanes_by_hand(threads: float, verdict: str) -> None:
    """24 of 32 threads are the target; one thread per instruction is a warp of which 31 wait."""
    found = judged(**{"smsp__thread_inst_executed_per_inst_executed.ratio": threads})
    assert (threads / 32, verdict) == tuple(found.loc["active_lanes_frac", ["value", "verdict"]])


@pytest.mark.parametrize("name", ["thedavidchu__speedy_scan__profile", "eschnett__IndexSpaces.jl__profile"])
def test_active_lanes_of_a_real_report(name: str, profiles: Path) -> None:
    """By NVIDIA's own module: threads per instruction over 32."""
    vendor = pytest.importorskip("ncu_report")
    file = profiles / "ncu" / f"{name}.ncu-rep"
    every = [action for of in vendor.load_report(str(file)) for action in of]
    metric = "smsp__thread_inst_executed_per_inst_executed.ratio"
    raw = [action.metric_by_name(metric).as_double() / 32 for action in every]
    run = perfkit.load(file)
    found = checks(run.launches, run.counters)
    lanes = found[found["check"] == "active_lanes_frac"]
    assert lanes["value"].tolist() == pytest.approx(raw)
    assert lanes["verdict"].tolist() == ["met" if value >= 0.75 else "missed" for value in raw]


def test_sectors_per_request_equal_a_loop() -> None:
    """On random counters the values are those of a plain loop."""
    rng = np.random.default_rng(7)
    sectors, requests = rng.integers(0, 999, 40), rng.integers(0, 9, 40)
    said = counters(*(loads(float(s), float(r)) for s, r in zip(sectors, requests, strict=True)))
    found = checks(launches(*({} for _ in sectors)), said)
    values = found.loc[found["check"].eq("load_sectors_per_request"), "value"].tolist()
    for sector, request, value in zip(sectors, requests, values, strict=True):
        assert pytest.approx(sector / request if request else np.nan, nan_ok=True) == value


HIT = "lts__t_sector_hit_rate.pct"


def verdicts(
    row: dict[str, Any], recorded: dict[str, float] | None = None, reasons: dict[str, float] | None = None
) -> pd.DataFrame:
    """The six checks of one launch, by name of the check."""
    table = target_checks(launches(row), counters(recorded or {}), None if reasons is None else stalls(reasons))
    return table.set_index(table["check"].astype(str))


def test_worked_by_hand() -> None:
    """A memory-bound GEMM: SM 62 % of 80 missed, tensor 90 % of 85 met, DRAM 76 % of 75 met, L2 hit 50 % missed,
    occupancy 51 % met; long_scoreboard is 6 of 6 + 3 + 1 cycles = 60 %, above 30: missed.
    """
    row = {"name": "ampere_sgemm_128x64_nn", "sm_frac": 0.62, "tensor_frac": 0.9, "dram_frac": 0.76}
    row |= {"memory_frac": 0.78, "achieved_occupancy_frac": 0.51}
    found = verdicts(row, {HIT: 50}, {"long_scoreboard": 6, "wait": 3, "selected": 1})
    assert list(TARGETS) == found.index.tolist()
    assert list(TARGET_VERDICTS) == found["verdict"].cat.categories.tolist()
    assert ["missed", "met", "met", "missed", "met", "missed"] == found["verdict"].tolist()
    assert [0.62, 0.9, 0.76, 0.5, 0.51, 0.6] == pytest.approx(found["value_frac"].tolist(), rel=1e-15)
    assert [0.8, 0.85, 0.75, 0.5, 0.5, 0.3] == found["target_frac"].tolist()
    assert ["", "", "", "", "", "long_scoreboard"] == found["detail"].tolist()


def test_nothing_measured() -> None:
    """Without counters every check that applies says how to measure it."""
    found = verdicts({"name": "sgemm"})
    assert {"not measured"} == set(found["verdict"])
    assert "record with `ncu --section WarpStateStats`" == found.loc["largest_stall", "detail"]
    assert found["value_frac"].isna().all()


def test_tensor_cores_are_asked_of_matrix_products() -> None:
    """An elementwise kernel is not asked; a GEMM that leaves them idle misses, with the value 0."""
    other = verdicts({"name": "vectorized_elementwise_kernel", "tensor_frac": 0.0}).loc["tensor_use"]
    assert ("not applicable", "its name does not say matrix product") == (other["verdict"], other["detail"])
    assert ("missed", 0) == tuple(
        verdicts({"name": "sgemm", "tensor_frac": 0}).loc["tensor_use"][["verdict", "value_frac"]]
    )


@pytest.mark.parametrize(
    ("sm", "memory", "verdict"),
    [(0.2, 0.7, "missed"), (0.7, 0.2, "not applicable"), (0.1, 0.1, "not applicable"), (np.nan, 0.9, "not measured")],
)
def test_dram_is_asked_where_memory_limits(sm: float, memory: float, verdict: str) -> None:
    """The vendor's rule decides whether memory limits the launch; the value is shown all the same."""
    found = verdicts({"sm_frac": sm, "memory_frac": memory, "dram_frac": 0.5}).loc["dram_throughput"]
    assert (verdict, 0.5) == (found["verdict"], found["value_frac"])


def test_a_small_stall_meets_its_target() -> None:
    """Four reasons of a quarter each: the largest has 25 %, under 30."""
    found = verdicts({}, reasons={"wait": 1, "barrier": 1, "drain": 1, "sleeping": 1}).loc["largest_stall"]
    assert ("met", 0.25) == (found["verdict"], found["value_frac"])


def test_verdicts_equal_a_comparison_row_by_row() -> None:
    """On 200 made-up launches every check equals `value > target` of its launch."""
    random = np.random.default_rng(5)
    columns = ["sm_frac", "tensor_frac", "achieved_occupancy_frac"]
    rows = [dict(zip(columns, random.random(3), strict=True)) | {"name": "sgemm"} for _ in range(200)]
    hits = [float(value) for value in random.uniform(0, 100, 200)]
    found = target_checks(launches(*rows), counters(*({HIT: hit} for hit in hits))).set_index(["launch", "check"])[
        "verdict"
    ]
    for i, (row, hit) in enumerate(zip(rows, hits, strict=True)):
        asked = {"sm_throughput": row["sm_frac"], "tensor_use": row["tensor_frac"], "l2_hit": hit / 100}
        asked["occupancy"] = row["achieved_occupancy_frac"]
        for name, value in asked.items():
            assert ("met" if value > TARGETS[name] else "missed") == found[i, name]


def test_each_launch_gets_its_own_counters() -> None:
    """The second of two launches has a hit rate, the first has not."""
    found = target_checks(launches({}, {}), counters({}, {HIT: 75}))
    assert ["not measured", "met"] == found.loc[found["check"] == "l2_hit", "verdict"].tolist()


def test_impossible_values_are_reported() -> None:
    """A hit rate of 500 % and a negative throughput are errors that name the launch and the check."""
    with pytest.raises(PerfkitError, match="launch 0: l2_hit is 5, not a fraction"):
        verdicts({}, {HIT: 500})
    with pytest.raises(PerfkitError, match=r"launch 0: sm_throughput is -0\.1"):
        verdicts({"sm_frac": -0.1})
