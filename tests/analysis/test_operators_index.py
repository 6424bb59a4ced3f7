"""Operators joined with their kernels once: any part of them sums up to what it does when it is joined by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from ops import random_launches, random_operators

from perfkit.analysis.operators.totals import Operators, summary
from perfkit.tables import API_CALLS, KERNELS, OPS


@pytest.mark.parametrize("by", ["name", ("name", "shapes"), ("rank", "thread")])
@pytest.mark.parametrize("window", [None, (200, 700), (990, 1300), (5000, 6000)])
@pytest.mark.parametrize("seed", range(3))
def test_parts_agree_with_their_own_join(seed: int, window: Any, by: Any) -> None:
    """All of it, each rank, some kernels, some kernels of a rank, and no kernel at all."""
    ops, (kernels, calls) = random_operators(seed), random_launches(seed)
    index = Operators(ops, kernels, calls)
    pd.testing.assert_frame_equal(
        summary(ops, kernels, calls, by=by, window=window), index.summary(by=by, window=window)
    )
    for rank in (0, 1):
        mine = [np.flatnonzero(table["rank"] == rank) for table in (ops, kernels, calls)]
        few = mine[1][kernels["name"].iloc[mine[1]].isin(["k1", "k3"])]
        for rows in (mine[1], few, few[:0]):
            expected = summary(ops.iloc[mine[0]], kernels.iloc[rows], calls.iloc[mine[2]], by=by, window=window)
            found = index.summary(by=by, window=window, ops=mine[0], kernels=rows)
            pd.testing.assert_frame_equal(expected, found)
    some = np.arange(0, len(kernels), 7)
    expected = summary(ops, kernels.iloc[some], calls, by=by, window=window)
    pd.testing.assert_frame_equal(expected, index.summary(by=by, window=window, kernels=some))


def test_wrong_keys_and_windows_are_refused() -> None:
    """As by the analysis."""
    index = Operators(OPS.empty(), KERNELS.empty(), API_CALLS.empty())
    assert index.summary().empty
    with pytest.raises(ValueError, match="is not one or more of"):
        index.summary(by="colour")
    with pytest.raises(ValueError, match="does not end after it starts"):
        index.summary(window=(4, 4))
