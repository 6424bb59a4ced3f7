"""The stall chart: one bar a launch, longest first, in shares that fill it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest

from perfkit.charts import stalls
from perfkit.errors import SchemaError

LAUNCHES = pd.DataFrame({"rank": [0, 0], "launch": [0, 1], "name": ["short", "long"], "dur_ns": [10.0, 90.0]})


def shares(*rows: tuple[int, str, float]) -> pd.DataFrame:
    """Shares as `analysis.stalls.shares` returns them."""
    return pd.DataFrame([(0, *row) for row in rows], columns=["rank", "launch", "reason", "share_frac"])


Checked = Callable[[alt.TopLevelMixin], dict[str, Any]]


def test_longest_launch_comes_first_and_names_its_stall(checked: Checked) -> None:
    """'long' takes 90 ns of 100: it is bar 1, and its largest stall, not what issued, is the title."""
    chart = stalls.bars(shares((1, "selected", 0.7), (1, "long_scoreboard", 0.3), (0, "wait", 1.0)), LAUNCHES)
    spec = checked(chart)
    assert "1. long: long scoreboard is 30.0 % of warp time" == spec["title"]["text"]
    assert ["1. long", "1. long", "2. short"] == [row["label"] for row in spec["layer"][0]["rows"]]


def test_segments_lie_end_to_end(checked: Checked) -> None:
    """0.3 and 0.7 are drawn from 0 to 0.3 and from 0.3 to 1."""
    rows = checked(stalls.bars(shares((1, "wait", 0.3), (1, "selected", 0.7)), LAUNCHES))["layer"][0]["rows"]
    assert [(0.0, 0.3), (0.3, 1.0)] == [(round(r["begin"], 9), round(r["end"], 9)) for r in rows]


def test_rare_reasons_become_one(checked: Checked) -> None:
    """Of ten reasons six are drawn by name, the other four together."""
    ten = shares(*((1, f"reason_{n}", 0.1) for n in range(10)))
    reasons = [row["reason"] for row in checked(stalls.bars(ten, LAUNCHES))["layer"][0]["rows"]]
    assert (7, "other reasons") == (len(reasons), reasons[-1])


def test_launches_without_stalls_are_a_sentence() -> None:
    """Nothing measured draws nothing and says which section measures it."""
    assert "WarpStateStats" in stalls.bars(shares(), LAUNCHES).to_dict()["description"]


def test_missing_column_and_wrong_share_are_refused() -> None:
    """A frame that is not of the analysis, or a share above 1, is an error."""
    with pytest.raises(SchemaError, match="share_frac"):
        stalls.bars(shares().drop(columns="share_frac"), LAUNCHES)
    with pytest.raises(ValueError, match="is not a fraction"):
        stalls.bars(shares((1, "wait", 1.5)), LAUNCHES)
