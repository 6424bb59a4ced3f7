"""Memory access of a launch held against its targets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from counted import counters, launches

from perfkit.analysis.access import VERDICTS, checks
from perfkit.errors import SchemaError
from perfkit.tables import COUNTERS, LAUNCHES

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
    assert found["value"].isna().all()
    assert all(
        f"`{measure}`" in said and "ncu --" in measure
        for measure, said in zip(found["measure"], found["sentence"], strict=True)
    )


def test_launches_are_judged_on_their_own() -> None:
    """A second launch, of another rank or without counters, does not change the first one's rows."""
    table = launches({}, {"rank": 0}, {"rank": 1, "launch": 0})
    found = checks(table, counters(loads(4, 1)))
    assert 3 * 7 == len(found)
    measured = found[found["verdict"].ne("not measured")]
    assert [(0, 0, "load_sectors_per_request")] == list(
        measured[["rank", "launch", "check"]].itertuples(index=False, name=None)
    )
    pd.testing.assert_frame_equal(checks(table.iloc[:1], counters(loads(4, 1))), found.iloc[:7])


def test_sectors_per_request_equal_a_loop() -> None:
    """On random counters the values are those of a plain loop."""
    rng = np.random.default_rng(7)
    sectors, requests = rng.integers(0, 999, 40), rng.integers(0, 9, 40)
    said = counters(*(loads(float(s), float(r)) for s, r in zip(sectors, requests, strict=True)))
    found = checks(launches(*({} for _ in sectors)), said)
    values = found.loc[found["check"].eq("load_sectors_per_request"), "value"].tolist()
    for sector, request, value in zip(sectors, requests, values, strict=True):
        assert pytest.approx(sector / request if request else np.nan, nan_ok=True) == value


def test_empty_tables() -> None:
    """No launches give no rows, with the columns and dtypes of a full answer."""
    full, empty = checks(launches({}), COUNTERS.empty()), checks(LAUNCHES.empty(), COUNTERS.empty())
    assert 0 == len(empty)
    assert full.dtypes.drop("name").to_dict() == empty.dtypes.drop("name").to_dict()
    assert list(VERDICTS) == empty["verdict"].cat.categories.tolist()


def test_wrong_tables() -> None:
    """Frames that are other tables are refused."""
    with pytest.raises(SchemaError, match="LAUNCHES"):
        checks(COUNTERS.empty(), COUNTERS.empty())
    with pytest.raises(SchemaError, match="COUNTERS"):
        checks(LAUNCHES.empty(), LAUNCHES.empty())
