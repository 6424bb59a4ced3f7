"""The charts take what the analyses return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest
from frames import api_calls, copies, kernels

from perfkit import analysis
from perfkit.charts import kernels as kernel_charts
from perfkit.charts import shares, timeline

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
KERNELS = kernels(
    {"start_ns": 0, "dur_ns": 400, "correlation": 1, "family": "gemm"},
    {"start_ns": 700, "dur_ns": 200, "correlation": 2, "family": "communication", "name": "ncclDevKernel_AllReduce"},
)
COPIES = copies({"start_ns": 950, "dur_ns": 50, "bytes": 64})
CALLS = api_calls({"start_ns": 0, "dur_ns": 5, "correlation": 1}, {"start_ns": 600, "dur_ns": 5, "correlation": 2})


def _idle(k: pd.DataFrame, c: pd.DataFrame) -> pd.DataFrame:
    return analysis.gaps.idle_gaps(k, c, CALLS)


CHARTS: dict[str, Callable[[pd.DataFrame, pd.DataFrame], alt.TopLevelMixin]] = {
    "lanes": lambda k, c: timeline.lanes(analysis.timeline.bins(k, c, bins=10)),
    "parts": lambda k, c: shares.parts(analysis.timeline.breakdown(k, c)),
    "bars": lambda k, c: kernel_charts.bars(analysis.kernels.summary(k)),
    "histogram": lambda k, c: timeline.histogram(analysis.gaps.histogram(_idle(k, c))),
    "causes": lambda k, c: timeline.causes(analysis.gaps.idle_by_cause(_idle(k, c))),
}


@pytest.mark.parametrize("name", CHARTS)
def test_charts_take_what_the_analyses_return(name: str, checked: Check) -> None:
    """Two kernels, a copy and the gaps between them are drawn by every chart."""
    assert checked(CHARTS[name](KERNELS, COPIES))["config"]


@pytest.mark.parametrize("name", CHARTS)
def test_charts_take_what_the_analyses_return_for_nothing(name: str, checked: Check) -> None:
    """An empty capture is a sentence in every chart."""
    spec = checked(CHARTS[name](KERNELS.iloc[:0], COPIES.iloc[:0]))
    assert "Nothing to draw" in spec["description"]
