"""Sets of intervals against brute force, and what lies in a window."""

import numpy as np
import pytest
from analysis.spans import span
from frames import kernels, tuples

from perfkit.analysis import intervals
from perfkit.errors import PerfkitError
from perfkit.tables import COPIES, KERNELS

LOW, HIGH, GROUPS = -60, 140, 5
NONE = np.zeros(0, np.int64)


def some(
    seed: int, count: int = 40, longest: int = 12
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    start = random.integers(LOW, HIGH - longest, count)
    return start, start + random.integers(0, longest, count), random.integers(0, GROUPS, count)


def marked(start: np.ndarray, end: np.ndarray, group: np.ndarray) -> np.ndarray:
    cells = np.zeros((GROUPS, HIGH - LOW), bool)
    for first, last, row in zip(start, end, group, strict=True):
        cells[row, first - LOW : last - LOW] = True
    return cells


def runs(cells: np.ndarray) -> list[tuple[int, int, int]]:
    found = []
    for row, line in enumerate(cells):
        change = np.flatnonzero(np.diff(np.r_[False, line, False].astype(int))) + LOW
        found += [
            (row, int(first), int(last))
            for first, last in zip(change[::2], change[1::2], strict=True)
        ]
    return found


def rows(a: intervals.Intervals) -> list[tuple[int, int, int]]:
    return list(zip(a.group.tolist(), a.start.tolist(), a.end.tolist(), strict=True))


def test_union_of_groups_beyond_16_bits() -> None:
    group = np.array([70_000, 0, 70_000, 70_000])
    found = intervals.union(
        np.array([0, 5, 20, 8]), np.array([9, 9, 30, 2]), group
    )  # the last one covers nothing
    assert [(0, 5, 9), (70_000, 0, 9), (70_000, 20, 30)] == rows(found)
    # Wall-clock nanoseconds (1.7e18) of 1000 groups fit, because only their extent counts.
    start = np.full(1000, 1_700_000_000_000_000_000)
    a = intervals.union(start, start + 3, np.arange(1000))
    assert intervals.total(intervals.intersect(a, a), 1000).tolist() == [3] * 1000
    assert int(a.end[999]) == 1_700_000_000_000_000_003
    with pytest.raises(
        PerfkitError, match=r"10 groups of 1000000000000000001 ns each do not fit into int64"
    ):
        intervals.union(np.array([0, 0]), np.array([10**18, 5]), np.array([0, 9]))


@pytest.mark.parametrize("seed", range(8))
def test_union_marks_the_same_nanoseconds_as_brute_force(seed: int) -> None:
    for count in (10, 40, 200):
        start, end, group = some(seed, count)
        expected = marked(start, end, group)
        # By group and start, by start alone, and in any order.
        for order in (np.lexsort((start, group)), np.argsort(start), np.arange(count)):
            found = intervals.union(start[order], end[order], group[order])
            assert runs(expected) == rows(found)
        assert expected.sum(axis=1).tolist() == intervals.total(found, GROUPS).tolist()


@pytest.mark.parametrize("seed", range(8))
def test_two_sets_against_brute_force(seed: int) -> None:
    one, other = some(seed), some(seed + 100, count=60, longest=5)
    a, b = marked(*one), marked(*other)
    for function, expected in (
        (intervals.intersect, a & b),
        (intervals.subtract, a & ~b),
        (intervals.merge, a | b),
    ):
        assert runs(expected) == rows(function(intervals.union(*one), intervals.union(*other)))


@pytest.mark.parametrize("seed", range(6))
def test_binned_counts_marked_nanoseconds(seed: int) -> None:
    start, end, group = some(seed)
    inner = np.random.default_rng(seed).choice(np.arange(LOW + 1, HIGH), 17, replace=False)
    edges = np.r_[LOW, np.sort(inner), HIGH]
    expected = np.add.reduceat(marked(start, end, group).astype(int), edges[:-1] - LOW, axis=1)
    row, at, length = intervals.binned(intervals.union(start, end, group), edges)
    filled = np.argwhere(expected)
    assert filled.tolist() == np.stack([row, at], axis=1).tolist()
    assert expected[tuple(filled.T)].tolist() == length.tolist()


def test_shares_are_within_0_and_1() -> None:
    assert [[], [], []] == [
        part.tolist() for part in intervals.binned(intervals.union(NONE, NONE), np.array([0, 1]))
    ]
    found = intervals.share(np.array([3, 0]), np.array([4, 0]))
    assert [0.75, np.nan] == pytest.approx(found.tolist(), rel=0, nan_ok=True)
    for part, whole in ((5, 4), (-1, 4), (1, 0)):
        with pytest.raises(PerfkitError, match=rf"share: {part} ns of {whole} ns is not in 0..1"):
            intervals.share(np.array([1, part]), np.array([1, whole]))


def test_cut_shortens_at_both_edges() -> None:
    frame = kernels(span(0, 30), span(20, 40), span(50, 60))
    found = KERNELS.check(intervals.cut(frame, (10, 25)))
    assert [(10, 15), (20, 5)] == tuples(found, "start_ns", "dur_ns")
    assert frame["start_ns"].tolist() == [0, 20, 50]
    assert intervals.cut(kernels(*(span(at, at) for at in (9, 10, 19, 20))), (10, 20))[
        "start_ns"
    ].tolist() == [10, 19]
    assert frame is intervals.cut(frame, None)
    assert frame is intervals.cut(frame, (0, 60))
    assert len(COPIES.check(intervals.cut(COPIES.empty(), (0, 1)))) == 0
