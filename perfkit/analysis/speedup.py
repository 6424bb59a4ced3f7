"""How much can a run gain at most if parts of it are shortened?

Conventions
-----------
Shares are of one timeline of length 1, and may overlap. A measure removes a fraction of its share. The gain
of several measures is a range, because what of the shares overlaps is not known from the shares alone. It is
never the product of the single gains: time that two measures remove is there only once.

Functions
---------
bounds   the least and the greatest speed-up of several measures together
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Bounds(NamedTuple):
    """The least and the greatest speed-up: old time over new time, at least 1; infinite where nothing is left."""

    low: float
    high: float


def bounds(shares: Sequence[float], removed: Sequence[float], *, exclusive: Sequence[float] | None = None) -> Bounds:
    """Return the range of the speed-up if a fraction of each share of one timeline is removed.

    With shares p, removed fractions r and exclusive parts x (what no other share covers):
    low = 1 / (1 - sum of r x), high = 1 / max(largest p (1 - r), 1 - sum of r p). What remains of one share takes its
    time whatever becomes of the others, and no more than the sum can be removed.

    Parameters
    ----------
    shares
        Share of the timeline of each measure's target, 0..1; may be empty.
    removed
        Fraction of its share that each measure removes, 0..1.
    exclusive
        The part of each share that none of the others covers, 0..share. Without it the least that is possible
        for any overlap: the share less the sum of the others, and at least 0.

    Returns
    -------
    Bounds
        1 <= low <= high; (1, 1) without measures.

    Raises
    ------
    ValueError
        If the lengths differ or a value lies outside its range.

    References
    ----------
    G. M. Amdahl, "Validity of the single processor approach to achieving large scale computing
    capabilities" (1967), applied to sets of intervals.

    Examples
    --------
    >>> bounds([0.784], [0.6]).high.__round__(3)
    1.888
    >>> [round(each, 3) for each in bounds([0.784, 0.913], [0.6, 0.8], exclusive=[0.087, 0.216])]
    [1.29, 3.189]
    """
    alone = _alone(shares) if exclusive is None else list(exclusive)
    if not len(shares) == len(removed) == len(alone):
        raise ValueError(f"removed: {len(removed)} fractions and {len(alone)} exclusive parts for {len(shares)} shares")
    for share, fraction, own in zip(shares, removed, alone, strict=True):
        if not (0 <= share <= 1 and 0 <= fraction <= 1 and 0 <= own <= share):
            raise ValueError(f"shares: {share}, {fraction} removed, {own} exclusive; fractions lie between 0 and 1")
    saved = sum(r * x for r, x in zip(removed, alone, strict=True))
    left = max((p * (1 - r) for p, r in zip(shares, removed, strict=True)), default=1.0)
    least = max(left, 1 - sum(r * p for p, r in zip(shares, removed, strict=True)))
    return Bounds(_inverse(1 - saved), _inverse(least))


def _alone(shares: Sequence[float]) -> list[float]:
    total = sum(shares)
    return [max(0.0, share - (total - share)) for share in shares]


def _inverse(time: float) -> float:
    return 1 / time if time > 0 else math.inf
