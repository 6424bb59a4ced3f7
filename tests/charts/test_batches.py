"""Latency by batch size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest

from perfkit.charts.operators import latency
from perfkit.errors import SchemaError

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
TIMES = pd.DataFrame({"batch_count": [32, 1, 8], "latency_ns": [50e6, 9e6, 20e6]})


def test_points_and_their_line(checked: Check) -> None:
    """By hand: 5 ms + 1.5 ms per sample are 53 ms at 32, 3 ms above the point there; 32 in 50 ms are 640 per second."""
    line, points, words = checked(latency(TIMES, intercept_ns=5e6, slope_ns=1.5e6))["layer"]
    assert [(0.0, 5.0), (37.76, 61.64)] == [(row["batch"], pytest.approx(row["ms"])) for row in line["rows"]]
    assert [(1, 9.0), (8, 20.0), (32, 50.0)] == [(row["batch"], row["ms"]) for row in points["rows"]]
    assert ["above by 2.50 ms", "above by 3.00 ms", "below by 3.00 ms"] == [row["off"] for row in points["rows"]]
    assert ["111", "400", "640"] == [row["rate"] for row in points["rows"]]
    assert ["9.00 ms", "20.0 ms", "50.0 ms"] == [row["words"] for row in words["rows"]]


def test_everything_lies_inside_the_picture(checked: Check) -> None:
    """Both axes begin at 0 and end beyond points and line; a line that begins below 0 is seen, too."""
    for first in (5e6, -4e6):
        chart = checked(latency(TIMES, intercept_ns=first, slope_ns=1.5e6))
        encoding = chart["layer"][1]["encoding"]
        (left, right), (low, high) = (encoding[axis]["scale"]["domain"] for axis in ("x", "y"))
        assert (0, min(first / 1e6, 0)) == (left, low)
        assert right > 32
        assert high > max(50, first / 1e6 + 1.5 * right - 0.001)
    assert (
        "A batch takes 5.00 ms and 1.50 ms for each sample"
        in checked(latency(TIMES, intercept_ns=5e6, slope_ns=1.5e6))["title"]["text"]
    )


def test_one_batch_size_is_no_line(checked: Check) -> None:
    """It says what is missing; without a column it is refused."""
    spec = checked(latency(TIMES.iloc[:1], intercept_ns=0, slope_ns=0))
    assert "at least two" in spec["title"]["subtitle"][0]
    with pytest.raises(SchemaError, match="latency_ns"):
        latency(TIMES[["batch_count"]], intercept_ns=0, slope_ns=0)
