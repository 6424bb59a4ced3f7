"""Sets of intervals against brute force, and what lies in a window."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import span
from frames import copies, kernels, tuples

from perfkit.analysis.intervals import (
    Intervals,
    binned,
    bounds,
    cut,
    devices,
    ends,
    intersect,
    merge,
    share,
    spans,
    subtract,
    total,
    union,
)
from perfkit.errors import PerfkitError
from perfkit.tables import COPIES, KERNELS

LOW, HIGH, GROUPS = -60, 140, 5
NONE = np.zeros(0, np.int64)


def some(seed: int, count: int = 40, longest: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Intervals in no order, some empty, some touching, over negative and positive times."""
    random = np.random.default_rng(seed)
    start = random.integers(LOW, HIGH - longest, count)
    return start, start + random.integers(0, longest, count), random.integers(0, GROUPS, count)


def marked(start: np.ndarray, end: np.ndarray, group: np.ndarray) -> np.ndarray:
    """One row per group, one cell per nanosecond."""
    cells = np.zeros((GROUPS, HIGH - LOW), bool)
    for first, last, row in zip(start, end, group, strict=True):
        cells[row, first - LOW : last - LOW] = True
    return cells


def runs(cells: np.ndarray) -> list[tuple[int, int, int]]:
    """The maximal stretches of marked cells as (group, start, end)."""
    found = []
    for row, line in enumerate(cells):
        change = np.flatnonzero(np.diff(np.r_[False, line, False].astype(int))) + LOW
        found += [(row, int(first), int(last)) for first, last in zip(change[::2], change[1::2], strict=True)]
    return found


def rows(a: Intervals) -> list[tuple[int, int, int]]:
    """The set as (group, start, end)."""
    return list(zip(a.group.tolist(), a.start.tolist(), a.end.tolist(), strict=True))


@pytest.mark.parametrize(
    ("start", "end", "group", "expected"),
    [
        # [0,10) and [5,20) overlap, [20,30) touches, [40,50) stands alone.
        ([40, 0, 20, 5], [50, 10, 30, 20], None, [(0, 0, 30), (0, 40, 50)]),
        # [0,100) covers [10,20) and [30,40): the end of the union is not the end of the last interval.
        ([0, 10, 30], [100, 20, 40], None, [(0, 0, 100)]),
        # An interval that ends where it starts, or before, covers nothing and joins nothing.
        ([0, 5, 6, 8], [5, 5, 9, 2], None, [(0, 0, 5), (0, 6, 9)]),
        # Groups do not touch each other, and are more than 16 bits hold.
        ([0, 0], [10, 10], [1, 0], [(0, 0, 10), (1, 0, 10)]),
        ([0, 5, 20, 8], [9, 9, 30, 12], [70_000, 0, 70_000, 70_000], [(0, 5, 9), (70_000, 0, 12), (70_000, 20, 30)]),
    ],
    ids=["overlap", "cover", "empty", "groups", "70000 groups"],
)
def test_union_by_hand(start: list[int], end: list[int], group: list[int] | None, expected: list[Any]) -> None:
    """Groups, starts and ends: in the comment of each case."""
    groups = () if group is None else (np.array(group),)
    assert expected == rows(union(np.array(start), np.array(end), *groups))


@pytest.mark.parametrize("seed", range(8))
def test_union_marks_the_same_nanoseconds_as_brute_force(seed: int) -> None:
    """Union equals the maximal runs of marked nanoseconds, group by group, and its total is their number."""
    for count in (10, 40):
        drawn = some(seed, count)
        assert runs(marked(*drawn)) == rows(union(*drawn))
        assert marked(*drawn).sum(axis=1).tolist() == total(union(*drawn), GROUPS).tolist()


@pytest.mark.parametrize("seed", range(8))
def test_union_does_not_depend_on_the_order(seed: int) -> None:
    """Sorted by (group, start), sorted by start and shuffled input give the same set."""
    start, end, group = some(seed, 200)
    by_group, by_start = np.lexsort((start, group)), np.argsort(start)
    orders = [by_group, by_start, np.arange(200)]
    first, *others = [rows(union(start[order], end[order], group[order])) for order in orders]
    assert [first, first] == others


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("function", "marks"),
    [(intersect, np.logical_and), (subtract, lambda a, b: a & ~b), (merge, np.logical_or)],
    ids=["intersect", "subtract", "merge"],
)
def test_two_sets_against_brute_force(function: object, marks: object, seed: int) -> None:
    """Intersection, difference and merger of two sets mark the same nanoseconds as their logic."""
    one, other = some(seed), some(seed + 100, count=60, longest=5)
    expected = runs(marks(marked(*one), marked(*other)))
    assert expected == rows(function(union(*one), union(*other)))


def test_sets_without_intervals() -> None:
    """Nothing united, intersected or subtracted is nothing; nothing subtracted leaves the set."""
    nothing, a = union(NONE, NONE), union(np.array([3]), np.array([7]))
    assert [] == rows(nothing) == rows(merge(nothing)) == rows(merge(nothing, nothing))
    assert [] == rows(intersect(a, nothing)) == rows(subtract(nothing, a)) == rows(subtract(a, a))
    assert rows(a) == rows(subtract(a, nothing)) == rows(merge(a, nothing))
    assert total(nothing, 2).tolist() == [0, 0]
    assert [np.int64] * 3 == [column.dtype for column in nothing]


def test_far_times_stay_exact() -> None:
    """Wall-clock nanoseconds (1.7e18) of 1000 groups fit, because only their extent counts."""
    start = np.full(1000, 1_700_000_000_000_000_000)
    a = union(start, start + 3, np.arange(1000))
    assert total(intersect(a, a), 1000).tolist() == [3] * 1000
    assert int(a.end[999]) == 1_700_000_000_000_000_003


def test_what_int64_cannot_hold_is_reported() -> None:
    """Ten groups of 1e18 ns end to end exceed 9.2e18 ns."""
    with pytest.raises(PerfkitError, match=r"10 groups of 1000000000000000001 ns each do not fit into int64"):
        union(np.array([0, 0]), np.array([10**18, 5]), np.array([0, 9]))


def test_binned_splits_at_the_edges() -> None:
    """[5,25) over bins of 10: 5 + 10 + 5 ns; [26,28) adds 2 to the third bin; [40,41) is alone in the fifth."""
    a = union(np.array([5, 26, 40]), np.array([25, 28, 41]))
    assert [[0, 0, 0, 0], [0, 1, 2, 4], [5, 10, 7, 1]] == [part.tolist() for part in binned(a, np.arange(0, 60, 10))]
    assert [[], [], []] == [part.tolist() for part in binned(union(NONE, NONE), np.array([0, 1]))]


@pytest.mark.parametrize("seed", range(6))
def test_binned_counts_marked_nanoseconds(seed: int) -> None:
    """Every bin's length is the number of marked nanoseconds between its edges, also in uneven bins."""
    start, end, group = some(seed)
    inner = np.random.default_rng(seed).choice(np.arange(LOW + 1, HIGH), 17, replace=False)
    edges = np.r_[LOW, np.sort(inner), HIGH]
    expected = np.add.reduceat(marked(start, end, group).astype(int), edges[:-1] - LOW, axis=1)
    row, at, length = binned(union(start, end, group), edges)
    filled = np.argwhere(expected)
    assert filled.tolist() == np.stack([row, at], axis=1).tolist()
    assert expected[tuple(filled.T)].tolist() == length.tolist()


def test_shares_are_within_0_and_1() -> None:
    """3 of 4 is 0.75; 0 of 0 is NaN; a part larger than its whole is never clipped."""
    assert [0.75, np.nan] == pytest.approx(
        share(np.array([3, 0]), np.array([4, 0])).tolist(), rel=0, abs=0, nan_ok=True
    )
    for part, whole in ((5, 4), (-1, 4), (1, 0)):
        with pytest.raises(PerfkitError, match=rf"share: {part} ns of {whole} ns is not in 0..1"):
            share(np.array([1, part]), np.array([1, whole]))


def shuffled(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The rows in random order, as a user's own filter or concatenation may leave them."""
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def many(seed: int, count: int = 60) -> pd.DataFrame:
    """Kernels of 3 ranks with 2 GPUs each, at random times."""
    random = np.random.default_rng(seed)
    columns = ("rank", "gpu", "start_ns", "dur_ns")
    values = zip(*(random.integers(0, high, count).tolist() for high in (3, 2, 100, 20)), strict=True)
    return kernels(*(dict(zip(columns, row, strict=True)) for row in values))


def test_windows_that_cannot_be() -> None:
    """An empty or reversed window is refused by every function that takes one; times stay integers."""
    for window in ((5, 5), (6, 5)):
        for ask in (bounds, partial(cut, KERNELS.empty()), partial(ends, KERNELS.empty()), partial(spans, [], [], 0)):
            with pytest.raises(ValueError, match=r"does not end after it starts"):
                ask(window)
    with pytest.raises(ValueError, match=r"window: \(0.5, 2\) is not two integers"):
        bounds((0.5, 2))
    assert bounds((np.int64(1), np.int32(2))) == (1, 2)


def test_cut_shortens_at_both_edges() -> None:
    """[0,30), [20,40), [50,60) in the window [10,25): [10,25) and [20,25) remain, in a frame of its own.

    Of empty intervals at 9, 10, 19 and 20 the window [10,20) keeps 10 and 19. No window, or one that holds everything,
    copies nothing; an empty table stays empty and of its type.
    """
    frame = kernels(span(0, 30), span(20, 40), span(50, 60))
    found = KERNELS.check(cut(frame, (10, 25)))
    assert [(10, 15), (20, 5)] == tuples(found, "start_ns", "dur_ns")
    assert frame["start_ns"].tolist() == [0, 20, 50]
    assert cut(kernels(*(span(at, at) for at in (9, 10, 19, 20))), (10, 20))["start_ns"].tolist() == [10, 19]
    assert frame is cut(frame, None)
    assert frame is cut(frame, (0, 60))
    assert len(COPIES.check(cut(COPIES.empty(), (0, 1)))) == 0


@pytest.mark.parametrize("seed", range(3))
def test_ends_agree_with_cut(seed: int) -> None:
    """Where an operation has time in the window, both functions cut it alike; elsewhere end <= start."""
    frame = many(seed)
    start, end = ends(frame, (30, 70))
    shown = cut(frame, (30, 70))
    shown = shown[shown["dur_ns"] > 0]
    assert shown["start_ns"].tolist() == start[end > start].tolist()
    assert shown["dur_ns"].tolist() == (end - start)[end > start].tolist()
    start, end = ends(frame, None)
    assert (frame["start_ns"].tolist(), frame["dur_ns"].tolist()) == (start.tolist(), (end - start).tolist())


def test_devices_of_two_tables_are_numbered_together() -> None:
    """A device that is in one table only has a number too; the pairs ascend, an unknown GPU (-1) first."""
    index, (of_kernels, of_copies) = devices(
        kernels(*(span(0, 1, rank=rank, gpu=gpu) for rank, gpu in [(0, 1), (0, -1), (2, 0)])),
        copies(span(0, 1, rank=1, gpu=3), span(0, 1, rank=2, gpu=0)),
    )
    assert index.to_numpy().tolist() == [[0, -1], [0, 1], [1, 3], [2, 0]]
    assert index.dtypes.astype(str).tolist() == ["int32", "int32"]
    assert (of_kernels.tolist(), of_copies.tolist()) == ([0, 1, 3], [2, 3])
    index, groups = devices(KERNELS.empty(), COPIES.empty())
    assert (0, ["rank", "gpu"], [0, 0]) == (len(index), list(index), [len(group) for group in groups])


@pytest.mark.parametrize("seed", range(3))
def test_devices_give_every_row_its_own_pair(seed: int) -> None:
    """index[group] is the row's (rank, gpu), sorted or not."""
    frame = many(seed)
    for rows in (frame, shuffled(frame, seed)):
        index, (group,) = devices(rows)
        assert rows[["rank", "gpu"]].to_numpy().tolist() == index.to_numpy()[group].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_spans_against_a_loop(seed: int) -> None:
    """A device's own span runs from its first start to its last end over all tables; without own, its rank's does."""
    frames = [many(seed), shuffled(many(seed + 10), seed), KERNELS.empty()]
    index, groups = devices(*frames)
    start, end = spans(frames, groups, len(index), None, own=True)
    first, last = spans(frames, groups, len(index), None)
    rows = [row for frame in frames for row in frame.itertuples()]
    for number, (rank, gpu) in enumerate(index.to_numpy()):
        of_rank = [row for row in rows if row.rank == rank]
        own = [row for row in of_rank if row.gpu == gpu]
        for some, found in ((own, (start[number], end[number])), (of_rank, (first[number], last[number]))):
            assert found == (min(row.start_ns for row in some), max(row.start_ns + row.dur_ns for row in some))


def test_spans_with_a_window_are_the_window() -> None:
    """A chosen window is the span of every device."""
    start, end = spans([], [], 2, (3, 9))
    assert (start.tolist(), end.tolist()) == ([3, 3], [9, 9])
