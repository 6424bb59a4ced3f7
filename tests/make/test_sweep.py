"""The independent count of covered time."""

from __future__ import annotations

import numpy as np

from make.tally import covered, covered_until


def test_random_intervals_against_a_loop_over_time() -> None:
    """200 overlapping intervals cover the ns that a loop over every ns finds, up to any time."""
    rng = np.random.default_rng(5)
    start = rng.integers(0, 3000, 200)
    end = start + rng.integers(0, 12, 200)
    inside = [any(s <= t < e for s, e in zip(start, end, strict=True)) for t in range(3100)]
    times = np.sort(rng.integers(0, 3100, 50))
    assert [sum(inside[:t]) for t in times] == covered_until(start, end, times).tolist()
    first, last = covered(start, end)
    assert sum(inside) == (last - first).sum()
    assert (first[1:] >= last[:-1]).all()


def test_nothing_covers_nothing() -> None:
    """Without intervals no time is covered."""
    none = np.zeros(0, np.int64)
    assert [0, 0] == covered_until(none, none, np.array([5, 9])).tolist()
