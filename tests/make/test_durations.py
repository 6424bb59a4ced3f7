"""Durations with given count, total, median, minimum and maximum."""

from __future__ import annotations

import numpy as np
import pytest

from make.kernels import TABLE_5, Kernel
from make.timeline import draw_durations


@pytest.mark.parametrize("kernel", TABLE_5.values(), ids=TABLE_5.keys())
def test_all_figures_of_a_row_hold(kernel: Kernel) -> None:
    """Count, total, median, minimum and maximum are exact for every row of Table 5."""
    drawn = draw_durations(kernel, np.random.default_rng(7))
    expected = (kernel.count, kernel.total_ns, kernel.median_ns, kernel.min_ns, kernel.max_ns)
    assert expected == (len(drawn), drawn.sum(), np.median(drawn), drawn.min(), drawn.max())


def test_four_values_worked_by_hand() -> None:
    """Median 7.5 of four pins 7 and 8; with 4 and 12 at the ends the total can only be 31."""
    kernel = Kernel("k", "k", total_ns=31, count=4, median_ns=7.5, min_ns=4, max_ns=12)
    assert [12, 8, 7, 4] == draw_durations(kernel, np.random.default_rng(0)).tolist()


@pytest.mark.parametrize("total", [30, 32])
def test_impossible_total_raises(total: int) -> None:
    """No four integers have median 7.5, minimum 4, maximum 12 and another total than 31."""
    kernel = Kernel("k", "k", total_ns=total, count=4, median_ns=7.5, min_ns=4, max_ns=12)
    with pytest.raises(ValueError, match=f"k cannot have 4 launches of {total} ns in all"):
        draw_durations(kernel, np.random.default_rng(0))


def test_longest_comes_first() -> None:
    """Durations descend, so that the slowest of a step's launches can take the first ones."""
    drawn = draw_durations(TABLE_5["gemm_tn"], np.random.default_rng(3))
    assert (np.diff(drawn) <= 0).all()
