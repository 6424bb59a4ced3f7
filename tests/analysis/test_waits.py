"""What a thread did between two times."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from perfkit.analysis.causes import Axis, Placed, covered, innermost, longest, members, placed
from perfkit.analysis.intervals import union
from perfkit.errors import PerfkitError


def ints(*values: int) -> np.ndarray:
    """An int64 array."""
    return np.array(values, np.int64)


def test_axis_lays_groups_end_to_end() -> None:
    """Times 100..190 take 91 ns per group, so that group 1 begins at 91."""
    axis = Axis.over(2, ints(100, 150), ints(190), ints())
    assert axis.at(ints(0, 0, 1), ints(100, 190, 100)).tolist() == [0, 90, 91]


def test_axis_that_does_not_fit_raises() -> None:
    """Three groups of 2**62 ns exceed int64."""
    with pytest.raises(PerfkitError, match="3 threads or devices of 4611686018427387905 ns each do not fit"):
        Axis.over(3, ints(0, 2**62))


def test_placed_rows_are_in_order_with_the_longest_first() -> None:
    """Of rows that start together the longer comes first; empty rows are left out; rows keep their number."""
    frame = pd.DataFrame({"start_ns": [5, 5, 7, 0], "dur_ns": [2, 9, 0, 3]})
    got = placed(frame, ints(0, 0, 0, 1), Axis(0, 20))
    assert [a.tolist() for a in got] == [[5, 5, 20], [14, 7, 23], [1, 0, 3]]


def test_members_of_runs() -> None:
    """Runs of 2, 0 and 1 rows from 4, 9 and 0."""
    assert [a.tolist() for a in members(ints(4, 9, 0), ints(2, 0, 1))] == [[0, 0, 2], [4, 5, 0]]


def test_covered_equals_a_count_by_the_nanosecond() -> None:
    """Random sets and waits agree with marking every nanosecond; an empty set covers nothing."""
    rng = np.random.default_rng(1)
    start = rng.integers(0, 300, 40)
    cover = union(start, start + rng.integers(1, 6, 40))
    line = np.zeros(400, bool)
    for begin, end in zip(cover.start, cover.end, strict=True):
        line[begin:end] = True
    first = rng.integers(0, 300, 200)
    last = first + rng.integers(1, 100, 200)
    expected = [int(line[a:b].sum()) for a, b in zip(first, last, strict=True)]
    assert expected == covered(cover, first, last).tolist()
    assert covered(union(ints(), ints()), first, last).tolist() == [0] * 200


def test_longest_takes_the_earliest_of_equals_and_the_outer_of_nested() -> None:
    """In [0, 40) rows 3 and 5 cover 10 ns each: 3. In [50, 60) the inner row 8 covers as much as the outer 7: 7."""
    calls = Placed(ints(0, 30, 45, 50), ints(10, 40, 70, 65), ints(3, 5, 7, 8))
    assert longest(calls, ints(0, 50, 40, 10), ints(40, 60, 45, 30)).tolist() == [3, 7, -1, -1]


def test_innermost_needs_half() -> None:
    """Exactly half of [0, 20) is enough, one ns less is not; a range that is over by then may count too."""
    assert innermost(Placed(ints(0), ints(10), ints(4)), ints(0, 0), ints(20, 21)).tolist() == [4, -1]
    assert innermost(Placed(ints(10), ints(20), ints(4)), ints(0, 0), ints(20, 21)).tolist() == [4, -1]


def test_innermost_climbs_past_siblings() -> None:
    """Waits inside a parent of many short children are the parent's, and nobody's beyond it."""
    start = ints(0, *range(0, 1000, 10))
    ranges = Placed(start, np.append(1000, start[1:] + 4), np.arange(101))
    assert innermost(ranges, ints(100, 101, 990), ints(300, 104, 1400)).tolist() == [0, 11, -1]


def test_innermost_of_never_closed_ranges_is_the_last_opened() -> None:
    """Five thousand ranges that all end with the capture nest five thousand deep."""
    ranges = Placed(np.arange(5_000), np.full(5_000, 10_000), np.arange(5_000))
    assert innermost(ranges, ints(0, 6_000), ints(100, 9_000)).tolist() == [50, 4_999]


def test_no_intervals_answer_nothing() -> None:
    """Without intervals every wait is without an answer, and without waits there is none."""
    none = Placed(ints(), ints(), ints())
    assert longest(none, ints(0), ints(5)).tolist() == innermost(none, ints(0), ints(5)).tolist() == [-1]
    assert longest(none, ints(), ints()).tolist() == innermost(none, ints(), ints()).tolist() == []
