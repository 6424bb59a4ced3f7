"""What are the count, total, mean, median, extremes and spread of the values of each group?

Values are int64 or float64 without missing values; groups are codes 0 .. groups-1, and a group
without a value gets a row too. The median is the mean of the two middle values; the standard
deviation is that of a sample (n - 1), NaN for one value (vendor tables print 0.0). Values of
several ranks are pooled, so that a median is a true median.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Float, Int


class SpeedupBounds(NamedTuple):
    """The least and the greatest speed-up: old time over new time, at least 1; infinite where nothing is left."""

    low: float
    high: float


SPREAD, ROOM = 16, 2**20  # numbers that lie further apart are looked up by hashing, which is slower
Values = Int | Float


def keys_of(by: str | Sequence[str], legal: Sequence[str]) -> list[str]:
    """Return the keys to group by; raise ValueError if there is none, or one that is not `legal`."""
    keys = [by] if isinstance(by, str) else list(by)
    if not keys or not set(keys) <= set(legal):
        raise ValueError(f"by: {keys} is not one or more of {list(legal)}")
    return keys


def grouped(values: Values, group: Int, groups: int) -> pd.DataFrame:
    """Return count, total, mean, median, min, max and standard deviation of the values of each group.

    The standard deviation is taken around the group's mean in a second pass. Row i is group i.
    `count` int64; `total` int64 (exact) for integers, else float64, 0 for an empty group; `mean`,
    `median`, `min`, `max` float64, NaN for an empty group (min and max of integers are exact up to
    2**53); `std` float64, NaN for fewer than two values.

    >>> grouped(np.array([4, 1, 7, 2]), np.array([0, 0, 0, 1]), groups=2)
       count  total  mean  median  min  max  std
    0      3     12   4.0     4.0  1.0  7.0  3.0
    1      1      2   2.0     2.0  2.0  2.0  NaN
    """
    count = np.bincount(group, minlength=groups).astype(np.int64, copy=False)
    filled = np.flatnonzero(count)
    statistics = _of_sorted(_sorted_within(values, group, count), count[filled])
    columns: dict[str, NDArray[Any]] = {"count": count}
    for name, column in statistics.items():
        columns[name] = (
            np.zeros(groups, column.dtype) if name == "total" else np.full(groups, np.nan)
        )
        columns[name][filled] = column
    return pd.DataFrame(columns, copy=False)


def counted(values: Int, group: Int, groups: int) -> tuple[Int, Int, Int]:
    """Return count, exact sum and greatest of values of 0 and up per group, int64, 0 for an empty one, without sorting.

    >>> [column.tolist() for column in counted(np.array([4, 1, 7]), np.array([0, 0, 2]), groups=3)]
    [[2, 0, 1], [5, 0, 7], [4, 0, 7]]
    """
    total, greatest = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    np.add.at(total, group, values)
    np.maximum.at(greatest, group, values)
    return np.bincount(group, minlength=groups).astype(np.int64, copy=False), total, greatest


def _sorted_within(values: Values, group: Int, count: Int) -> Values:
    """Return the values ordered by group, and by size within a group."""
    if not len(values):
        return values
    low = int(values.min()) if values.dtype.kind == "i" else 0
    bits = (int(values.max()) - low).bit_length() if values.dtype.kind == "i" else 64
    if bits + len(count).bit_length() > 63:
        return values[np.lexsort((values, group))]
    # One number that holds group and value sorts several times faster than two keys.
    packed = group.astype(np.int64, copy=False) << bits
    # In place: memory holds one column, not three
    packed |= values.astype(np.int64, copy=False) - low
    packed.sort()
    packed &= (1 << bits) - 1
    packed += low
    return packed


def _of_sorted(values: Values, count: Int) -> dict[str, Values]:
    """Return the statistics of groups that follow each other, none of them empty."""
    if not len(count):
        return {
            "total": values,
            **dict.fromkeys(("mean", "median", "min", "max", "std"), np.zeros(0)),
        }
    last = np.cumsum(count) - 1
    first = last - count + 1
    total = np.add.reduceat(values, first)
    # Around the smallest value: of large integers that differ little no digit is lost.
    above = values - np.repeat(values[first], count)
    deviation = np.repeat(np.add.reduceat(above, first) / count, count)
    np.subtract(above, deviation, out=deviation)
    squares = np.add.reduceat(np.square(deviation, out=deviation), first)
    std = np.full(len(count), np.nan)
    several = count > 1
    std[several] = np.sqrt(squares[several] / (count[several] - 1))
    low, high = values[first + (count - 1) // 2], values[first + count // 2]
    middle = {"mean": total / count, "median": low + (high - low) / 2}
    return {"total": total, **middle, "min": values[first], "max": values[last], "std": std}


def largest(frame: pd.DataFrame, column: str) -> pd.Series:
    """Return the first row with the largest value of a column; the frame has rows, and no NaN."""
    return frame.iloc[int(frame[column].to_numpy().argmax())]


def over(how: np.ufunc, values: NDArray[Any], first: Int, stop: Int) -> NDArray[Any]:
    """Return values[first:stop] joined by `how` for each of these ranges; of an empty range anything."""
    # reduceat answers for what lies between two ranges as well; 0 stands behind the last value for
    # its end.
    return np.asarray(
        how.reduceat(np.append(values, 0), np.stack([first, stop], axis=1).ravel())[::2]
    )


def in_unit(statistics: pd.DataFrame, unit: str) -> pd.DataFrame:
    """Return what `grouped` found for integers as columns total_<unit>, ..., int64 but for mean, median and std."""
    columns = {
        name: statistics[name].to_numpy("int64" if name in ("min", "max") else None)
        for name in statistics
    }
    named = {
        name if name == "count" else f"{name}_{unit}": values for name, values in columns.items()
    }
    return pd.DataFrame(named, statistics.index, copy=False)


def totals(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return count, statistics and share of the `dur_ns` of the rows by their keys, the largest sum first."""
    table, group = numbered(frame, keys)
    table = table.join(in_unit(grouped(frame["dur_ns"].to_numpy(), group, len(table)), "ns"))
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    return ranked(table, "total_ns", keys)


def shared(column: pd.Series, group: Int, groups: int) -> pd.Series:
    """Return the value of a category column that all rows of a group have, missing where they differ."""
    code = column.cat.codes.to_numpy(np.int64)
    low, high = np.full(groups, np.iinfo(np.int64).max), np.full(groups, -1, np.int64)
    np.minimum.at(low, group, code)
    np.maximum.at(high, group, code)
    alike = np.where(low == high, high, -1)
    return pd.Series(pd.Categorical.from_codes(alike, categories=column.cat.categories))


def numbered(frame: pd.DataFrame, keys: list[str]) -> tuple[pd.DataFrame, Int]:
    """Return the distinct combinations of the columns `keys`, and for each row of `frame` the row of its combination.

    Combinations keep the dtypes and are in order of first appearance; missing values are a value of
    their own.

    >>> combinations, group = numbered(pd.DataFrame({"a": [5, 5, 3], "b": ["x", "y", "x"]}), ["a", "b"])
    >>> combinations.to_numpy().tolist(), group.tolist()
    ([[5, 'x'], [5, 'y'], [3, 'x']], [0, 1, 2])
    """
    group = np.zeros(len(frame), np.int64)
    for key in keys:
        code, values = pd.factorize(frame[key], use_na_sentinel=False)
        if len(values) > 1:
            group = pd.factorize(group * len(values) + code)[0].astype(np.int64, copy=False)
    first = np.zeros(int(group.max(initial=-1)) + 1, np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]
    return frame[keys].iloc[first].reset_index(drop=True), group


def rows_of(frame: pd.DataFrame, key: str, rank: Int, number: Int) -> Int:
    """Return the row of `frame` that has each rank, and each number in the column `key`; -1 where there is none."""
    ranks, numbers = (frame[column].to_numpy(np.int64) for column in ("rank", key))
    if not len(numbers):
        return np.full(len(number), -1, np.int64)
    lowest, low, span = ranks.min(), numbers.min(), int(numbers.max() - numbers.min()) + 1
    keys = (ranks - lowest) * span + (numbers - low)
    inside = (rank >= lowest) & (rank <= ranks.max()) & (number >= low) & (number - low < span)
    wanted = np.where(inside, (rank - lowest) * span + (number - low), -1)
    if (slots := int(keys.max()) + 1) > SPREAD * len(keys) + ROOM:
        return np.asarray(pd.Index(keys).get_indexer(wanted), np.int64)
    at = np.full(slots + 1, -1, np.int64)  # the last one answers for what is not in the table
    at[keys] = np.arange(len(keys))
    return np.asarray(at[wanted])


def ranked(frame: pd.DataFrame, total: str, keys: list[str]) -> pd.DataFrame:
    """Return the rows by falling `total`, ties by falling count, then by the text of the keys."""
    texts = [pd.factorize(frame[key].astype(str), sort=True)[0] for key in reversed(keys)]
    order = np.lexsort([*texts, -frame["count"].to_numpy(), -frame[total].to_numpy()])
    return frame.iloc[order].reset_index(drop=True)


def speedup_bounds(shares: Sequence[float], removed: Sequence[float]) -> SpeedupBounds:
    """Return the range of the speed-up if a fraction of each share of one timeline is removed.

    With shares p, removed fractions r and exclusive parts x (what no other share covers): low = 1 /
    (1 - sum of r x), high = 1 / max(largest p (1 - r), 1 - sum of r p). Shares may overlap, by how
    much is not known: what remains of one share takes its time whatever becomes of the others, and
    no more than the sum can be removed. It is never the product of the single gains: time that two
    measures remove is there only once.

    `shares`, `removed`: Share of the timeline of each measure's target, and the fraction of it that
    the measure removes, 0..1.
    The exclusive part of a share is the least that is possible for any overlap: the share less the
    sum of the others, and at least 0.

    SpeedupBounds: 1 <= low <= high; (1, 1) without measures. ValueError if the lengths differ or a
    value lies outside its range. Source: G. M. Amdahl, "Validity of the single processor approach
    to achieving large scale computing capabilities" (1967), applied to sets of intervals.

    >>> speedup_bounds([0.784], [0.6]).high.__round__(3)
    1.888
    """
    total = sum(shares)
    alone = [max(0.0, share - (total - share)) for share in shares]
    if len(shares) != len(removed):
        raise ValueError(f"removed: {len(removed)} fractions for {len(shares)} shares")
    for share, fraction in zip(shares, removed, strict=True):
        if not (0 <= share <= 1 and 0 <= fraction <= 1):
            raise ValueError(f"shares: {share}, {fraction} removed; fractions lie between 0 and 1")
    saved = sum(r * x for r, x in zip(removed, alone, strict=True))
    left = max((p * (1 - r) for p, r in zip(shares, removed, strict=True)), default=1.0)
    least = max(left, 1 - sum(r * p for p, r in zip(shares, removed, strict=True)))
    return SpeedupBounds(*(1 / time if time > 0 else math.inf for time in (1 - saved, least)))
