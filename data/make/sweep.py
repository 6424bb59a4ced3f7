"""Which time do intervals cover? The independent count that the truth of a simulation rests on.

Functions
---------
covered        disjoint pieces of time that intervals cover
covered_until  how much of it lies before each of some times
"""

from __future__ import annotations

import numpy as np

from make.timeline import Int


def covered(start: Int, end: Int) -> tuple[Int, Int]:
    """Return starts and ends of the disjoint pieces, ascending, that [start, end) cover; pieces may touch.

    Examples
    --------
    >>> [piece.tolist() for piece in covered(np.array([0, 2, 9]), np.array([5, 7, 10]))]
    [[0, 5, 9], [5, 7, 10]]
    """
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if len(start):
        start = np.maximum(start, np.r_[start[0], np.maximum.accumulate(end)[:-1]])
    new = end > start
    return start[new], end[new]


def covered_until(start: Int, end: Int, times: Int) -> Int:
    """Return the time that [start, end) cover before each of the ascending `times`, ns."""
    first, last = covered(start, end)
    if not len(first):
        return np.zeros(len(times), np.int64)
    before = np.r_[0, np.cumsum(last - first)]
    piece = np.searchsorted(first, times, side="right")
    reached = np.minimum(times, last[np.maximum(piece - 1, 0)]) - first[np.maximum(piece - 1, 0)]
    return np.asarray(np.where(piece, before[np.maximum(piece - 1, 0)] + reached, 0), np.int64)
