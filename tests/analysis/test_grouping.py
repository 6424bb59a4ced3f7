"""Statistics of groups against pandas, and bounds of a speedup."""

import itertools

import numpy as np
import pandas as pd
import pytest

from perfkit.analysis.grouping import SpeedupBounds, counted, grouped, numbered, speedup_bounds


def test_groups_without_values() -> None:
    # One value: its standard deviation is NaN, not 0. A group without values has count and total 0 and NaN elsewhere.
    found = grouped(np.array([7, 5, 1, 4, 2]), np.array([0, 2, 0, 0, 0]), 4)
    assert [1, *[5.0] * 5] == found.loc[
        2, ["count", "total", "mean", "median", "min", "max"]
    ].tolist()
    assert np.isnan(found.loc[2, "std"])
    assert [[0, 0]] * 2 == found.loc[[1, 3], ["count", "total"]].to_numpy().tolist()
    assert found.loc[[1, 3], ["mean", "median", "min", "max", "std"]].isna().all(axis=None)
    for dtype in ("int64", "float64"):
        something = grouped(np.array([1, 2], dtype), np.array([0, 0]), 1)
        for groups in (0, 2):
            nothing = grouped(np.zeros(0, dtype), np.zeros(0, np.int64), groups)
            assert (groups, something.dtypes.to_dict()) == (len(nothing), nothing.dtypes.to_dict())


def test_totals_of_integers_are_exact() -> None:
    zeros = np.zeros(3, np.int64)
    assert grouped(np.array([2**53 + 1, 2**53]), zeros[:2], 1)["total"].tolist() == [2**54 + 1]
    # Squares of the values would drown a standard deviation of 1.
    assert grouped(10**15 + np.array([0, 1, 2]), zeros, 1)["std"].tolist() == [1.0]
    # Values that span nearly all of int64 are sorted all the same.
    wide = np.array([2**62, -(2**61), 5])
    assert grouped(wide, np.array([1, 1, 0]), 2)["min"].tolist() == [5.0, -float(2**61)]
    rng = np.random.default_rng(0)
    values, group = rng.integers(0, 10**12, 500), rng.integers(0, 8, 500)
    table = grouped(values, group, 9)[["count", "total", "max"]].fillna(0)
    assert table.to_numpy().T.tolist() == [of.tolist() for of in counted(values, group, 9)]


@pytest.mark.parametrize("most", [3, 300, 2**40, 2**62])  # codes that fit a table, and that do not
def test_numbers_of_keys_agree_with_pandas(most: int) -> None:
    rng = np.random.default_rng(most)
    frame = pd.DataFrame(
        {key: rng.choice(rng.integers(-most, most, 200), 300) for key in "abcdefgh"}
    )
    frame["small"] = rng.integers(-128, 128, 300).astype("int8")
    frame["name"] = pd.Categorical.from_codes(rng.integers(-1, 2, 300), ["x", "y"])
    for keys in (["a"], ["small", "name"], ["a", "name", "b"], [*"abcdefgh"]):
        combinations, group = numbered(frame, keys)
        expected = frame.groupby(keys, sort=False, dropna=False, observed=True).ngroup()
        assert expected.tolist() == group.tolist()
        pd.testing.assert_frame_equal(frame[keys], combinations.take(group).reset_index(drop=True))


def test_the_first_of_many_keys_is_not_lost_beyond_int64() -> None:
    # Eight keys of 256 values each: their product is 2**64, and 0 in int64.
    count = np.tile(np.arange(256), 2)
    frame = pd.DataFrame(
        {"first": np.r_[count[:256], count[255::-1]], **dict.fromkeys("abcdefgh", count)}
    )
    assert [*range(512)] == numbered(frame, [*frame])[1].tolist()


def test_bounds_of_a_speedup_by_hand() -> None:
    # Nothing overlaps, so the range is a point.
    assert speedup_bounds([0.784], [0.6]) == pytest.approx(
        SpeedupBounds(1 / (1 - 0.784 * 0.6), 1 / (1 - 0.784 * 0.6))
    )
    # Transfers 78.4 % and launches 91.3 % of one timeline: 1.15x to 3.19x where the source's summary multiplied to
    # 351.5x. At least 0 and 0.913 - 0.784 are exclusive: 1 / (1 - 0.8 x 0.129) and 1 / max(0.3136, 0.1826).
    found = speedup_bounds([0.784, 0.913], [0.6, 0.8])
    assert found == pytest.approx((1 / (1 - 0.8 * 0.129), 3.1888), rel=1e-4)
    # The greatest gain is infinite, not a division by zero.
    assert [(1.0, 1.0), (np.inf, np.inf)] == [speedup_bounds([], []), speedup_bounds([1.0], [1.0])]
    # More measures never raise the low end above the high end.
    for p, q, r, s in itertools.product([0.0, 0.3, 0.7, 1.0], repeat=4):
        found = speedup_bounds([p, q], [r, s])
        assert 1 <= found.low <= found.high
    # Shares beyond 0..1 come from mixed denominators.
    for shares, removed in (([1.1], [0.5]), ([0.5], [-0.1]), ([0.5], [0.5, 0.5])):
        with pytest.raises(ValueError, match=r"shares|removed"):
            speedup_bounds(shares, removed)


def test_every_timeline_lies_between_the_bounds() -> None:
    # A cell is saved if every set that covers it removes it: the speed-up lies in the range of every overlap.
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
