"""The iterations of a training as points over the course of its log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest

from perfkit.charts.machine import iterations
from perfkit.errors import SchemaError

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]
MS, SECOND = 1e6, 1_000_000_000


def log(*lengths: float, rank: int = 0, chosen: int = 0, count: int = 1) -> pd.DataFrame:
    """Iterations of so many ms, a line each second, chosen from the one of this number on."""
    rows = [
        {"rank": rank, "time_ns": n * SECOND, "count": count, "chosen": n >= chosen}
        | {"median_ns": ms * MS, "least_ns": (ms - count + 1) * MS, "most_ns": (ms + count - 1) * MS}
        for n, ms in enumerate(lengths)
    ]
    return pd.DataFrame(rows)


def points(spec: dict[str, Any]) -> dict[str, Any]:
    """The layer of points."""
    return next(view for view in spec["layer"] if view["mark"]["type"] == "point")


def test_points_in_time_and_their_median(checked: Check) -> None:
    """900 ms, then 300 and 310: the median is 310, the first 900; time in s, from the first line on."""
    spec = checked(iterations(log(900, 300, 310)))
    rows = points(spec)["rows"]
    assert [(0, 900), (1, 300), (2, 310)] == [(row["time"], row["median"]) for row in rows]
    assert spec["title"]["text"] == "The median iteration takes 310 ms, the first 900 ms"
    assert "(ms)" in points(spec)["encoding"]["y"]["title"]
    assert "(s)" in points(spec)["encoding"]["x"]["title"]


def test_iterations_outside_the_window_are_fainter(checked: Check) -> None:
    """The title speaks of the chosen ones, and the others are counted."""
    spec = checked(iterations(log(900, 300, 320, chosen=1)))
    assert [0.3, 1.0, 1.0] == [row["shade"] for row in points(spec)["rows"]]
    assert spec["title"]["text"] == "The median iteration takes 310 ms, the first 900 ms"
    assert "1 of 3 iterations lie outside the window" in spec["title"]["subtitle"][1]


def test_neighbours_of_a_long_log(checked: Check) -> None:
    """Groups of three show how far their iterations lie apart."""
    spec = checked(iterations(log(300, 310, count=3)))
    assert [(298, 302), (308, 312)] == [(row["least"], row["most"]) for row in points(spec)["rows"]]
    assert spec["title"]["subtitle"] == [
        "Points: medians of neighbouring iterations; bars: from the least to the most."
    ]


def test_logs_are_told_apart(checked: Check) -> None:
    """Of ten logs the first eight are drawn, each in a colour of its own."""
    spec = checked(iterations(pd.concat([log(100 + rank, 100 + rank, rank=rank) for rank in range(10)])))
    scale = points(spec)["encoding"]["color"]["scale"]
    assert [f"log {rank}" for rank in range(8)] == scale["domain"]
    assert 8 == len({*scale["range"]})
    assert spec["title"]["text"] == "The median iteration takes 100 ms to 107 ms, by log"
    assert "These are the first 8 of 10 logs." in spec["title"]["subtitle"]


def test_without_iterations_the_chart_says_so() -> None:
    """Nothing is drawn."""
    assert "No iterations" == iterations(log(1).iloc[:0]).to_dict()["title"]["text"]


def test_a_missing_column_is_named() -> None:
    """The chart says what it lacks."""
    with pytest.raises(SchemaError, match="chosen"):
        iterations(log(1).drop(columns="chosen"))
