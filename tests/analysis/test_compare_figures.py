"""Named figures side by side, and which way each is better."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from perfkit.analysis.compare import COMPARED_FIGURES, FIGURES, figures
from perfkit.analysis.compare.resampling import direction, of_interval, of_values
from perfkit.errors import SchemaError


def table(*rows: tuple[str, float, str]) -> pd.DataFrame:
    """FIGURES from (id, value, unit)."""
    frame = pd.DataFrame(rows, columns=["id", "value", "unit"])
    return FIGURES.make(frame.assign(label=frame["id"].str.upper(), definition="what", source="where"))


def test_worked_by_hand() -> None:
    """Step 100 -> 80 and busy 0.5 -> 0.4 differ untested, launches 7 -> 9 changed, one is new and one is gone."""
    before = table(("step_median_ns", 100, "ns"), ("device_busy_frac", 0.5, "1"), ("kernel_count", 7, "count"))
    before = FIGURES.make(pd.concat([before, table(("h2d_count", 3, "count"))]).astype({"unit": object}))
    after = table(("kernel_count", 9, "count"), ("step_median_ns", 80, "ns"), ("device_busy_frac", 0.4, "1"))
    after = FIGURES.make(pd.concat([after, table(("mfu", 0.4, "1"))]).astype({"unit": object}))
    found = figures(before, after).set_index("id")
    assert [*["changed, not tested"] * 2, "changed", "gone", "new"] == found["verdict"].tolist()
    assert [100, 80, -20, 0.8] == found.loc["step_median_ns", ["before", "after", "difference", "ratio"]].tolist()
    assert ["STEP_MEDIAN_NS", "ns", "what", "where"] == found.loc[
        "step_median_ns", ["label", "unit", "definition", "source"]
    ].tolist()
    assert found.loc[["h2d_count", "mfu"], "ratio"].isna().all()


def test_an_interval_decides() -> None:
    """20 % better as values, no difference by an interval that holds 1, and not to be told by one that is not known."""
    pair = table(("step_median_ns", 100, "ns")), table(("step_median_ns", 80, "ns"))
    ends = {"wide": (0.6, 1.1), "narrow": (0.75, 0.85), "none": (math.nan, math.nan)}
    found = [figures(*pair, intervals={"step_median_ns": end}).loc[0, "verdict"] for end in ends.values()]
    assert ["no difference seen", "better", "cannot tell"] == found


def test_small_differences_are_none() -> None:
    """4 % of a rate, and a share of 0.1 % that becomes 0.3 %, are no difference; 10 % of the rate is."""
    before = table(("bus_bytes_per_s", 100, "bytes/s"), ("idle_sync_frac", 0.001, "1"))
    after = table(("bus_bytes_per_s", 104, "bytes/s"), ("idle_sync_frac", 0.003, "1"))
    assert ["no difference seen"] * 2 == figures(before, after)["verdict"].tolist()
    assert "changed, not tested" == figures(before, after, tolerance=0.03).loc[0, "verdict"]
    assert ["better", "worse"] == [of_values(100, value, better="higher") for value in (110, 90)]


def test_what_is_small_beside_the_whole_is_none() -> None:
    """Twice 1 us, with a narrow interval, is worse; not where less than 5 us does not matter."""
    pair = table(("part_idle_ns", 1000, "ns")), table(("part_idle_ns", 2000, "ns"))
    known = {"intervals": {"part_idle_ns": (1.9, 2.1)}}
    said = [figures(*pair, **known, least={"part_idle_ns": least}).loc[0, "verdict"] for least in (0.0, 5000.0)]
    assert ["worse", "no difference seen"] == said


def test_nothing_is_better_without_an_interval() -> None:
    """Whatever values two figures have, single ones are never better or worse: that takes an interval."""
    ids = ("device_busy_frac", "idle_frac", "h2d_bytes_per_s", "step_median_ns", "kernel_count")
    pairs = ([(name, value, "1") for name in ids] for value in (0.2, 0.8))
    before, after = (table(*rows) for rows in pairs)
    said = {*figures(before, after)["verdict"], *figures(after, before)["verdict"]}
    assert {"changed", "changed, not tested"} == said


def test_a_figure_that_was_zero() -> None:
    """From 0 there is no ratio, but a difference and a verdict."""
    found = figures(table(("input_wait_frac", 0, "1")), table(("input_wait_frac", 0.3, "1"))).iloc[0]
    assert ("changed, not tested", 0.3) == (found["verdict"], found["difference"])
    assert math.isnan(found["ratio"])


@pytest.mark.parametrize(
    ("figure", "better"),
    [
        ("step_median_ns", "lower"),
        ("idle_data_loading_frac", "lower"),
        ("device_busy_frac", "higher"),
        ("h2d_bytes_per_s", "higher"),
        ("sample_tensor_active_frac", "higher"),
        ("family_gemm_ns", "lower"),
        ("part_exposed_copy_ns", "lower"),
        ("paths_wall_ns", "lower"),
        ("kernel_sum_ns", ""),
        ("kernel_median_ns", ""),
        ("main_stall_frac", ""),
        ("anything", ""),
    ],
)
def test_directions(figure: str, better: str) -> None:
    """Times, idleness and waiting are better lower, use of the hardware higher; totals of a recording have no way."""
    assert better == direction(figure)


def test_intervals_and_what_matters() -> None:
    """The whole interval must lie beyond 1 % of 1, or of what else is said to matter."""
    cases = [(1.011, 1.2), (1.0, 1.2), (0.9, 0.98), (0.9, 0.995), (math.nan, 1.0)]
    said = ["worse", "no difference seen", "better", "no difference seen", "cannot tell"]
    assert said == [of_interval(*ends) for ends in cases]
    assert ["changed", "better"] == [of_interval(1.1, 1.2, better=way) for way in ("", "higher")]
    assert "no difference seen" == of_interval(1.011, 1.2, matters=0.05)
    assert "cannot tell" == of_values(math.nan, math.nan, better="lower")


def test_empty() -> None:
    """Without figures there is no row."""
    pd.testing.assert_frame_equal(COMPARED_FIGURES.empty(), figures(FIGURES.empty(), FIGURES.empty()))


def test_swapping_the_runs() -> None:
    """Differences change their sign, better becomes worse where it is tested, and new becomes gone."""
    pair = table(("a_bytes_per_s", 5, "bytes/s"), ("x", 1, "count")), table(("a_bytes_per_s", 9, "bytes/s"))
    found = figures(*pair, intervals={"a_bytes_per_s": (1.5, 2.1)})
    swapped = figures(*pair[::-1], intervals={"a_bytes_per_s": (1 / 2.1, 1 / 1.5)})
    assert found["difference"][0] == -swapped["difference"][0]
    assert (["better", "gone"], ["worse", "new"]) == (found["verdict"].tolist(), swapped["verdict"].tolist())


def test_wrong_arguments() -> None:
    """An id that is there twice and a foreign table are refused."""
    with pytest.raises(ValueError, match="before: the figure 'a' is there more than once"):
        figures(table(("a", 1, "ns"), ("a", 2, "ns")), FIGURES.empty())
    with pytest.raises(SchemaError, match="'FIGURES' does not match"):
        figures(FIGURES.empty(), FIGURES.empty().drop(columns="unit"))
