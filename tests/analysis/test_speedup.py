"""Bounds of the speed-up of several measures on one timeline."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from perfkit.analysis.grouping import SpeedupBounds, speedup_bounds


def test_one_measure_is_amdahls_law() -> None:
    """60 % of 78.4 % removed: 1 / (1 - 0.4704) = 1.8882, and nothing overlaps, so the range is a point."""
    assert speedup_bounds([0.784], [0.6]) == pytest.approx(SpeedupBounds(1 / (1 - 0.784 * 0.6), 1 / (1 - 0.784 * 0.6)))


def test_the_source_summary_is_far_above_its_bounds() -> None:
    """Transfers 78.4 % and launches 91.3 % of one timeline: 1.29x to 3.19x where the summary multiplied to 351.5x.

    Least overlap 0.697, exclusive 0.087 and 0.216: 1 / (1 - 0.0522 - 0.1728) and 1 / max(0.3136, 0.1826).
    """
    assert speedup_bounds([0.784, 0.913], [0.6, 0.8], exclusive=[0.087, 0.216]) == pytest.approx(
        (1.2903, 3.1888), rel=1e-4
    )


def test_nothing_to_remove_gains_nothing() -> None:
    """Without measures the program is as fast as it was."""
    assert speedup_bounds([], []) == (1.0, 1.0)


def test_everything_removed_leaves_no_time() -> None:
    """The greatest gain is infinite, not a division by zero."""
    assert speedup_bounds([1.0], [1.0]) == (np.inf, np.inf)


def test_every_timeline_lies_between_the_bounds() -> None:
    """Oracle: 300 timelines of 60 cells with random sets; of a removed set any cells of it may go.

    A cell is saved if every set that covers it removes it: the speed-up lies in the range of every overlap.
    """
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


@pytest.mark.parametrize(("shares", "removed"), [([1.1], [0.5]), ([0.5], [-0.1]), ([0.5], [0.5, 0.5])])
def test_refuses_what_is_no_share(shares: list[float], removed: list[float]) -> None:
    """Shares beyond 0..1 come from mixed denominators."""
    with pytest.raises(ValueError, match=r"shares|removed"):
        speedup_bounds(shares, removed)


def test_more_measures_never_raise_the_low_end_above_the_high_end() -> None:
    """The range is ordered for every pair of shares and removals of a coarse grid."""
    grid = [0.0, 0.3, 0.7, 1.0]
    for p, q, r, s in itertools.product(grid, repeat=4):
        found = speedup_bounds([p, q], [r, s])
        assert 1 <= found.low <= found.high
