"""The performance guide's metric table, checked per launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from counted import counters, launches, stalls

from perfkit.analysis.access import TARGET_VERDICTS, TARGETS, target_checks
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import COUNTERS, LAUNCHES

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


def test_empty_tables() -> None:
    """No launches make no checks, with all columns and categories."""
    found = target_checks(LAUNCHES.empty(), COUNTERS.empty())
    assert 0 == len(found)
    assert (list(TARGETS), list(TARGET_VERDICTS)) == tuple(
        found[c].cat.categories.tolist() for c in ("check", "verdict")
    )
    assert "float64" == found["value_frac"].dtype == found["target_frac"].dtype


def test_impossible_values_are_reported() -> None:
    """A hit rate of 500 % and a negative throughput are errors that name the launch and the check."""
    with pytest.raises(PerfkitError, match="launch 0: l2_hit is 5, not a fraction"):
        verdicts({}, {HIT: 500})
    with pytest.raises(PerfkitError, match=r"launch 0: sm_throughput is -0\.1"):
        verdicts({"sm_frac": -0.1})


def test_wrong_tables_are_refused() -> None:
    """Tables in the wrong order are errors that name the table."""
    with pytest.raises(SchemaError, match="table 'LAUNCHES' does not match"):
        target_checks(COUNTERS.empty(), LAUNCHES.empty())
    with pytest.raises(SchemaError, match="table 'STALLS' does not match"):
        target_checks(LAUNCHES.empty(), COUNTERS.empty(), COUNTERS.empty())
