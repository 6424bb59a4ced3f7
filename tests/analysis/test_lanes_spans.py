"""Intervals that nest, counted and summed as one ns at a time says."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfkit.analysis.lanes import Spans


def brute(frame: pd.DataFrame, group: Any, count: int, edges: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Rows that touch each bin, and the ns in which any ran, one ns at a time."""
    ran = np.zeros((count, edges[-1]), bool)
    touched = [[0] * (len(edges) - 1) for _ in range(count)]
    for start, dur, of in zip(frame["start_ns"], frame["dur_ns"], group, strict=True):
        ran[of, start : start + dur] = True
        for at, (low, high) in enumerate(pairwise(edges)):
            touched[of][at] += start < high and (start + dur > low or start >= low)
    sums = [[int(ran[of, low:high].sum()) for low, high in pairwise(edges)] for of in range(count)]
    return touched, sums


@pytest.mark.parametrize("seed", range(5))
def test_spans_agree_with_counting(seed: int) -> None:
    """Nested and overlapping rows, some of 0 ns, in any order and an empty group: as counted ns by ns."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"start_ns": rng.integers(0, 180, 60), "dur_ns": rng.integers(0, 20, 60)})
    group, edges = rng.integers(0, 3, 60), np.array([0, 1, 50, 120, 200])
    spans = Spans(frame, group, 4)
    touched, sums = brute(frame, group, 4, edges)
    assert sums == spans.busy(edges).tolist()
    windows = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    assert touched == np.stack([spans.count(window) for window in windows], axis=1).tolist()
    listed = [spans.rows(window, np.ones(4, bool)) for window in windows]
    assert touched == np.stack([np.bincount(of, minlength=4) for _, of in listed], axis=1).tolist()
    assert all((group[row] == of).all() for row, of in listed)
    assert [sum(part) for part in sums] == spans.total.tolist()


def test_spans_by_hand() -> None:
    """[0, 30) holds [10, 20), [60, 60) lasts 0 ns, [50, 70) is of another group: 30 and 20 ns."""
    frame = pd.DataFrame({"start_ns": [10, 50, 0, 60], "dur_ns": [10, 20, 30, 0]})
    spans = Spans(frame, np.array([0, 1, 0, 0]), 2)
    assert [30, 20] == spans.total.tolist()
    assert [[20, 10, 0], [0, 10, 10]] == spans.busy(np.array([0, 20, 60, 80])).tolist()
    assert [1, 1] == spans.count((20, 60)).tolist()
    rows, group = spans.rows((0, 100), np.array([True, True]), at_least=20)
    assert ([2, 1], [0, 1]) == (rows.tolist(), group.tolist())


def test_no_interval_has_no_time() -> None:
    """An empty table in three groups: nothing anywhere."""
    spans = Spans(pd.DataFrame({"start_ns": [], "dur_ns": []}, dtype="int64"), np.zeros(0, np.int64), 3)
    assert ([0, 0, 0], [0, 0, 0]) == (spans.total.tolist(), spans.count((0, 9)).tolist())
    assert [[0], [0], [0]] == spans.busy(np.array([0, 9])).tolist()
