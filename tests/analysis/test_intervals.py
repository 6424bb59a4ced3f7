"""Sets of intervals against brute force, and what lies in a window."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from frames import copies, kernels

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


def test_union_merges_overlap_and_touch() -> None:
    """[0,10) and [5,20) overlap, [20,30) touches, [40,50) stands alone."""
    found = union(np.array([40, 0, 20, 5]), np.array([50, 10, 30, 20]))
    assert rows(found) == [(0, 0, 30), (0, 40, 50)]


def test_union_keeps_what_a_long_interval_covers() -> None:
    """[0,100) covers [10,20) and [30,40): the end of the union is not the end of the last interval."""
    assert rows(union(np.array([0, 10, 30]), np.array([100, 20, 40]))) == [(0, 0, 100)]


def test_union_drops_empty_and_reversed_intervals() -> None:
    """An interval that ends where it starts, or before, covers nothing and joins nothing."""
    assert rows(union(np.array([0, 5, 6, 8]), np.array([5, 5, 9, 2]))) == [(0, 0, 5), (0, 6, 9)]


def test_groups_do_not_touch_each_other() -> None:
    """Group 0 ends at the last and group 1 starts at the first nanosecond: two intervals remain."""
    found = union(np.array([0, 0]), np.array([10, 10]), np.array([1, 0]))
    assert rows(found) == [(0, 0, 10), (1, 0, 10)]


@pytest.mark.parametrize("seed", range(8))
def test_union_marks_the_same_nanoseconds_as_brute_force(seed: int) -> None:
    """Union equals the maximal runs of marked nanoseconds, group by group."""
    start, end, group = some(seed)
    assert runs(marked(start, end, group)) == rows(union(start, end, group))


@pytest.mark.parametrize("seed", range(8))
def test_union_does_not_depend_on_the_order(seed: int) -> None:
    """Sorted by (group, start), sorted by start and shuffled input give the same set."""
    start, end, group = some(seed, 200)
    by_group, by_start = np.lexsort((start, group)), np.argsort(start)
    orders = [by_group, by_start, np.arange(200)]
    first, *others = [rows(union(start[order], end[order], group[order])) for order in orders]
    assert [first, first] == others


def test_union_takes_groups_beyond_16_bits() -> None:
    """Groups 70000 and 0, interleaved, come back ascending and apart."""
    found = union(np.array([0, 5, 20, 8]), np.array([9, 9, 30, 12]), np.array([70_000, 0, 70_000, 70_000]))
    assert rows(found) == [(0, 5, 9), (70_000, 0, 12), (70_000, 20, 30)]


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


@pytest.mark.parametrize("seed", range(4))
def test_a_set_is_its_part_inside_and_its_part_outside(seed: int) -> None:
    """|A| = |A and B| + |A - B|, in every group."""
    a, b = union(*some(seed)), union(*some(seed + 50))
    parts = total(intersect(a, b), GROUPS) + total(subtract(a, b), GROUPS)
    assert total(a, GROUPS).tolist() == parts.tolist()


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


@pytest.mark.parametrize("seed", range(4))
def test_total_counts_marked_nanoseconds(seed: int) -> None:
    """The total of a group is the number of its marked nanoseconds; a group without any has 0."""
    start, end, group = some(seed, 10)
    assert marked(start, end, group).sum(axis=1).tolist() == total(union(start, end, group), GROUPS).tolist()


def test_binned_splits_at_the_edges() -> None:
    """[5,25) over bins of 10: 5 + 10 + 5 ns; [26,28) adds 2 to the third bin; [40,41) is alone in the fifth."""
    a = union(np.array([5, 26, 40]), np.array([25, 28, 41]))
    group, at, length = binned(a, np.arange(0, 60, 10))
    assert (group.tolist(), at.tolist(), length.tolist()) == ([0, 0, 0, 0], [0, 1, 2, 4], [5, 10, 7, 1])


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


def test_binned_of_nothing() -> None:
    """No interval, no row."""
    assert [column.tolist() for column in binned(union(NONE, NONE), np.array([0, 1]))] == [[], [], []]


def test_share_of_nothing_is_missing() -> None:
    """3 of 4 is 0.75; 0 of 0 is NaN."""
    found = share(np.array([3, 0]), np.array([4, 0]))
    assert found[0] == 0.75
    assert np.isnan(found[1])


@pytest.mark.parametrize(("part", "whole"), [(5, 4), (-1, 4), (1, 0)])
def test_share_outside_0_to_1_is_reported(part: int, whole: int) -> None:
    """A part larger than its whole is never clipped."""
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


@pytest.mark.parametrize("window", [(5, 5), (6, 5)])
def test_a_window_that_does_not_end_after_it_starts(window: tuple[int, int]) -> None:
    """An empty or reversed window is refused by every function that takes one."""
    with pytest.raises(ValueError, match=r"does not end after it starts"):
        bounds(window)
    with pytest.raises(ValueError, match=r"does not end after it starts"):
        cut(KERNELS.empty(), window)
    with pytest.raises(ValueError, match=r"does not end after it starts"):
        ends(KERNELS.empty(), window)
    with pytest.raises(ValueError, match=r"does not end after it starts"):
        spans([], [], 0, window)


def test_a_window_in_fractions_of_a_nanosecond() -> None:
    """Times stay integers: a window of floats is refused, one of numpy integers is not."""
    with pytest.raises(ValueError, match=r"window: \(0.5, 2\) is not two integers"):
        bounds((0.5, 2))
    assert bounds((np.int64(1), np.int32(2))) == (1, 2)


def test_cut_shortens_at_both_edges() -> None:
    """[0,30), [20,40), [50,60) in the window [10,25): [10,25) and [20,25) remain."""
    frame = kernels(*({"start_ns": start, "dur_ns": dur} for start, dur in [(0, 30), (20, 20), (50, 10)]))
    found = cut(frame, (10, 25))
    assert found[["start_ns", "dur_ns"]].to_numpy().tolist() == [[10, 15], [20, 5]]
    KERNELS.check(found)
    assert frame["start_ns"].tolist() == [0, 20, 50]


def test_cut_keeps_an_empty_interval_inside_only() -> None:
    """Of empty intervals at 9, 10, 19 and 20 the window [10,20) keeps 10 and 19."""
    frame = kernels(*({"start_ns": start, "dur_ns": 0} for start in (9, 10, 19, 20)))
    assert cut(frame, (10, 20))["start_ns"].tolist() == [10, 19]


def test_cut_without_need_returns_the_frame_itself() -> None:
    """No window, or one that holds everything, copies nothing."""
    frame = kernels({"start_ns": 10, "dur_ns": 10})
    assert cut(frame, None) is frame
    assert cut(frame, (10, 20)) is frame


def test_cut_of_an_empty_table() -> None:
    """An empty table stays empty and of its type."""
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


def test_ends_without_window() -> None:
    """Without a window the ends are start_ns and start_ns + dur_ns."""
    start, end = ends(kernels({"start_ns": 3, "dur_ns": 4}), None)
    assert (start.tolist(), end.tolist()) == ([3], [7])


def test_devices_of_two_tables_are_numbered_together() -> None:
    """A device that is in one table only has a number too; the pairs ascend, an unknown GPU (-1) first."""
    index, (of_kernels, of_copies) = devices(
        kernels(*({"rank": rank, "gpu": gpu, "start_ns": 0, "dur_ns": 1} for rank, gpu in [(0, 1), (0, -1), (2, 0)])),
        copies({"rank": 1, "gpu": 3, "start_ns": 0, "dur_ns": 1}, {"rank": 2, "gpu": 0, "start_ns": 0, "dur_ns": 1}),
    )
    assert index.to_numpy().tolist() == [[0, -1], [0, 1], [1, 3], [2, 0]]
    assert index.dtypes.astype(str).tolist() == ["int32", "int32"]
    assert (of_kernels.tolist(), of_copies.tolist()) == ([0, 1, 3], [2, 3])


@pytest.mark.parametrize("seed", range(3))
def test_devices_give_every_row_its_own_pair(seed: int) -> None:
    """index[group] is the row's (rank, gpu), sorted or not."""
    frame = many(seed)
    for rows in (frame, shuffled(frame, seed)):
        index, (group,) = devices(rows)
        assert rows[["rank", "gpu"]].to_numpy().tolist() == index.to_numpy()[group].tolist()


def test_devices_of_empty_tables() -> None:
    """Empty tables have no device."""
    index, groups = devices(KERNELS.empty(), COPIES.empty())
    assert (len(index), list(index)) == (0, ["rank", "gpu"])
    assert [len(group) for group in groups] == [0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_spans_against_a_loop(seed: int) -> None:
    """A device's own span runs from its first start to its last end over all tables; without own, its rank's does."""
    frames = [many(seed), shuffled(many(seed + 10), seed), KERNELS.empty()]
    index, groups = devices(*frames)
    start, end = spans(frames, groups, len(index), None, own=True)
    first, last = spans(frames, groups, len(index), None)
    rows = [row for frame in frames for row in frame.itertuples()]
    for number, (rank, gpu) in enumerate(index.to_numpy()):
        own = [(row.start_ns, row.start_ns + row.dur_ns) for row in rows if (row.rank, row.gpu) == (rank, gpu)]
        assert (min(own)[0], max(until for _, until in own)) == (start[number], end[number])
        of_rank = [(row.start_ns, row.start_ns + row.dur_ns) for row in rows if row.rank == rank]
        assert (min(of_rank)[0], max(until for _, until in of_rank)) == (first[number], last[number])


def test_spans_with_a_window_are_the_window() -> None:
    """A chosen window is the span of every device."""
    start, end = spans([], [], 2, (3, 9))
    assert (start.tolist(), end.tolist()) == ([3, 3], [9, 9])
