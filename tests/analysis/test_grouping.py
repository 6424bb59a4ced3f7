"""Statistics of groups against pandas, and bounds of a speedup."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pandas as pd
import pytest

from perfkit.analysis.grouping import SpeedupBounds, counted, grouped, in_unit, numbered, ranked, speedup_bounds


def test_worked_by_hand() -> None:
    """1, 2, 4, 7: total 14, mean 3.5, median (2 + 4) / 2 = 3, deviations squared 6.25 + 2.25 + 0.25 + 12.25 = 21."""
    row = grouped(np.array([7, 1, 4, 2]), np.array([0, 0, 0, 0]), 1).iloc[0]
    expected = {"count": 4, "total": 14, "mean": 3.5, "median": 3.0, "min": 1.0, "max": 7.0, "std": 7**0.5}
    assert expected == pytest.approx(row.to_dict(), rel=1e-15)


def test_single_value_has_no_deviation() -> None:
    """One value: its own mean, median, min and max; the standard deviation is NaN, not 0."""
    row = grouped(np.array([5]), np.array([0]), 1).iloc[0]
    assert row[["total", "mean", "median", "min", "max"]].tolist() == [5.0] * 5
    assert np.isnan(row["std"])


def test_empty_group() -> None:
    """A group without values has count and total 0 and NaN elsewhere; its neighbours are untouched."""
    found = grouped(np.array([3, 9]), np.array([0, 2]), 4)
    assert found["count"].tolist() == [1, 0, 1, 0]
    assert found["total"].tolist() == [3, 0, 9, 0]
    assert found.loc[[1, 3], ["mean", "median", "min", "max", "std"]].isna().all(axis=None)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_no_values(dtype: str) -> None:
    """Nothing gives no rows, or rows of empty groups, with the same columns and types as something."""
    something = grouped(np.array([1, 2], dtype), np.array([0, 0]), 1)
    for groups in (0, 2):
        nothing = grouped(np.zeros(0, dtype), np.zeros(0, np.int64), groups)
        assert groups == len(nothing)
        assert something.dtypes.to_dict() == nothing.dtypes.to_dict()


@pytest.mark.parametrize("dtype", ["int64", "float64"])
@pytest.mark.parametrize("low", [0, -(2**40), 10**15])
def test_agrees_with_the_standard_library(dtype: str, low: int) -> None:
    """Random groups, some empty, have the statistics that exact arithmetic finds one by one."""
    random = np.random.default_rng(7)
    values = (low + random.integers(0, 1000, 500)).astype(dtype)
    group = random.integers(0, 40, 500) * 2
    found = grouped(values, group, 80)
    assert np.bincount(group, minlength=80).tolist() == found["count"].tolist()
    for number in np.unique(group):
        own = [int(v) for v in values[group == number]]
        spread = statistics.stdev(own) if len(own) > 1 else np.nan
        expected = [sum(own), sum(own) / len(own), statistics.median(own), min(own), max(own), spread]
        assert expected == pytest.approx(found.iloc[number, 1:].tolist(), rel=1e-12, nan_ok=True)


def test_totals_of_integers_are_exact() -> None:
    """2**53 + 1, which no float64 holds, and 2**53 add to 2**54 + 1."""
    assert grouped(np.array([2**53 + 1, 2**53]), np.array([0, 0]), 1)["total"].tolist() == [2**54 + 1]


def test_deviation_of_large_values_keeps_its_digits() -> None:
    """1e15 + (0, 1, 2) has mean 1e15 + 1 and standard deviation 1: squares of the values would drown it."""
    values = 10**15 + np.array([0, 1, 2])
    assert grouped(values, np.zeros(3, np.int64), 1)["std"].tolist() == [1.0]


def test_values_too_wide_to_pack() -> None:
    """Values that span nearly all of int64 are sorted all the same."""
    wide = np.array([2**62, -(2**61), 5])
    assert grouped(wide, np.array([1, 1, 0]), 2)["min"].tolist() == [5.0, -float(2**61)]


@pytest.mark.parametrize(
    ("values", "group", "groups", "message"),
    [
        ([1, 2], [0], 1, "1 codes for 2 values"),
        ([1, 2], [0, 2], 2, "codes 0 to 2 are not all within 0 to 1"),
        ([1, 2], [0, -1], 2, "codes -1 to 0 are not all within 0 to 1"),
        ([1.0, np.nan], [0, 0], 1, "some are NaN"),
    ],
)
def test_wrong_arguments(values: list[float], group: list[int], groups: int, message: str) -> None:
    """Lengths that differ, codes outside the groups and missing values are refused."""
    with pytest.raises(ValueError, match=message):
        grouped(np.array(values), np.array(group), groups)


def test_unit_is_the_suffix() -> None:
    """Statistics of integers get the unit as suffix; total, min and max stay integers."""
    found = in_unit(grouped(np.array([4, 1]), np.array([0, 0]), 1), "bytes")
    assert {c: "float64" if c[:4] in ("mean", "medi", "std_") else "int64" for c in found} == {
        c: str(t) for c, t in found.dtypes.items()
    }
    assert found.columns.tolist() == [
        "count",
        *(f"{c}_bytes" for c in ("total", "mean", "median", "min", "max", "std")),
    ]


def test_keys_are_numbered_in_order_of_appearance() -> None:
    """Category, integer and missing values are told apart; the combinations keep their types."""
    frame = pd.DataFrame(
        {
            "name": pd.Categorical(["b", None, "b", "a", None], categories=["a", "b", "unused"]),
            "blocks": pd.array([1, 1, pd.NA, 1, 1], dtype="Int64"),
        }
    )
    combinations, group = numbered(frame, ["name", "blocks"])
    assert group.tolist() == [0, 1, 2, 3, 1]
    assert combinations.dtypes.to_dict() == frame.dtypes.to_dict()
    assert combinations["name"].astype(object).where(combinations["name"].notna(), "-").tolist() == ["b", "-", "b", "a"]
    assert combinations["blocks"].fillna(-1).tolist() == [1, 1, -1, 1]


def test_keys_of_an_empty_frame() -> None:
    """No rows have no combinations."""
    combinations, group = numbered(pd.DataFrame({"name": pd.Categorical([])}), ["name"])
    assert (len(combinations), len(group)) == (0, 0)


def test_numbers_agree_with_groupby() -> None:
    """Rows share a number exactly if they share all keys."""
    random = np.random.default_rng(3)
    frame = pd.DataFrame({"a": random.integers(-5, 5, 300), "b": pd.Categorical(random.choice(list("xyz"), 300))})
    _, group = numbered(frame, ["a", "b"])
    expected = pd.factorize(pd.Series(list(zip(frame["a"], frame["b"], strict=True))))[0]
    assert expected.tolist() == group.tolist()


def test_order_of_a_summary() -> None:
    """By falling total, then falling count, then the text of the first and second key."""
    frame = pd.DataFrame(
        {"a": list("xxyxz"), "b": list("rqqqq"), "count": [1, 1, 1, 2, 1], "total_ns": [5, 5, 5, 5, 6]}
    )
    found = ranked(frame, "total_ns", ["a", "b"])
    assert (found["a"] + found["b"]).tolist() == ["zq", "xq", "xq", "xr", "yq"]
    assert found.index.tolist() == [0, 1, 2, 3, 4]


def test_counts_without_sorting_are_those_with() -> None:
    """Count, sum and greatest of 500 values in 9 groups, of which one is empty, as `grouped` has them."""
    rng = np.random.default_rng(0)
    values, group = rng.integers(0, 10**12, 500), rng.integers(0, 8, 500)
    table = grouped(values, group, 9)
    count, total, greatest = counted(values, group, 9)
    assert table["count"].tolist() == count.tolist()
    assert table["total"].tolist() == total.tolist()
    assert table["max"].fillna(0).tolist() == greatest.tolist()
    with pytest.raises(ValueError, match="codes 0 to 1 are not all within 0 to 0"):
        counted(np.array([1, 2]), np.array([0, 1]), 1)


def test_one_measure_is_amdahls_law() -> None:
    """60 % of 78.4 % removed: 1 / (1 - 0.4704) = 1.8882, and nothing overlaps, so the range is a point."""
    assert speedup_bounds([0.784], [0.6]) == pytest.approx(SpeedupBounds(1 / (1 - 0.784 * 0.6), 1 / (1 - 0.784 * 0.6)))


def test_the_source_summary_is_far_above_its_bounds() -> None:
    """Transfers 78.4 % and launches 91.3 % of one timeline: 1.29x to 3.19x where the summary multiplied to 351.5x.

    Least overlap 0.697, exclusive 0.087 and 0.216: 1 / (1 - 0.0522 - 0.1728) and 1 / max(0.3136, 0.1826).
    """
    assert speedup_bounds([0.784, 0.913], [0.6, 0.8], exclusive=[0.087, 0.216]) == pytest.approx(
        (1.2903, 3.1888), rel=1e-4
    )


def test_nothing_to_remove_gains_nothing() -> None:
    """Without measures the program is as fast as it was."""
    assert speedup_bounds([], []) == (1.0, 1.0)


def test_everything_removed_leaves_no_time() -> None:
    """The greatest gain is infinite, not a division by zero."""
    assert speedup_bounds([1.0], [1.0]) == (np.inf, np.inf)


def test_every_timeline_lies_between_the_bounds() -> None:
    """Oracle: 300 timelines of 60 cells with random sets; of a removed set any cells of it may go.

    A cell is saved if every set that covers it removes it: the speed-up lies in the range of every overlap.
    """
    random = np.random.default_rng(4)
    for _ in range(300):
        cells = random.random((random.integers(1, 4), 60)) < random.random()
        gone = cells & (random.random(cells.shape) < random.random((len(cells), 1)))
        sizes = cells.sum(axis=1)
        removed = np.divide(gone.sum(axis=1), sizes, out=np.zeros(len(cells)), where=sizes > 0)
        saved = (cells.any(axis=0) & (~cells | gone).all(axis=0)).sum()
        alone = [(row & ~np.delete(cells, i, 0).any(axis=0)) for i, row in enumerate(cells)]
        low = sum((gone[i] & own).sum() for i, own in enumerate(alone))
        found = speedup_bounds((sizes / 60).tolist(), removed.tolist())
        assert low <= saved
        speed = 60 / (60 - saved) if saved < 60 else np.inf
        assert speed <= found.high * (1 + 1e-12)


@pytest.mark.parametrize(("shares", "removed"), [([1.1], [0.5]), ([0.5], [-0.1]), ([0.5], [0.5, 0.5])])
def test_refuses_what_is_no_share(shares: list[float], removed: list[float]) -> None:
    """Shares beyond 0..1 come from mixed denominators."""
    with pytest.raises(ValueError, match=r"shares|removed"):
        speedup_bounds(shares, removed)


def test_more_measures_never_raise_the_low_end_above_the_high_end() -> None:
    """The range is ordered for every pair of shares and removals of a coarse grid."""
    grid = [0.0, 0.3, 0.7, 1.0]
    for p, q, r, s in itertools.product(grid, repeat=4):
        found = speedup_bounds([p, q], [r, s])
        assert 1 <= found.low <= found.high
