"""The bars of the kernels that take most time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest

from perfkit.charts.kernels import bars
from perfkit.errors import SchemaError

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]


def _summary(**totals: int) -> pd.DataFrame:
    names = pd.Series(list(totals), dtype="category")
    total = pd.Series(totals.values(), dtype="int64")
    return pd.DataFrame(
        {"name": names, "family": "gemm", "count": 2, "total_ns": total, "share_frac": total / max(total.sum(), 1)}
    )


def _rows(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return spec["layer"][0]["rows"]


def test_longest_first_and_the_rest_in_one_bar(checked: Check) -> None:
    """60, 25, 10 and 5 µs with two bars: the rest are 15 µs, 15 % and 4 launches."""
    spec = checked(bars(_summary(d=5_000, a=60_000, c=10_000, b=25_000), top=2))
    drawn = [(row["label"], row["time"], row["share"], row["count"]) for row in _rows(spec)]
    assert [("a", 60, "60.0 %", 2), ("b", 25, "25.0 %", 2), ("2 other kernels", 15, "15.0 %", 4)] == drawn
    assert "a takes 60.0 % of GPU kernel time" == spec["title"]["text"]
    assert "GPU time (µs)" == spec["layer"][0]["encoding"]["x"]["title"]


def test_one_kernel_left_over(checked: Check) -> None:
    """A single remaining kernel is not called kernels."""
    assert "1 other kernel" == _rows(checked(bars(_summary(a=2, b=1), top=1)))[-1]["label"]


def test_no_bar_for_nothing(checked: Check) -> None:
    """With as many bars as kernels there is no bar for others."""
    assert ["a", "b"] == [row["label"] for row in _rows(checked(bars(_summary(a=2, b=1))))]


def test_hostile_names_stay_text(checked: Check) -> None:
    """Markup, line breaks and 10,000 characters come from a profile: they are data, on one line and cut."""
    names = {"<script>alert(1)</script>": 3, "x" * 10_000: 2, "line\nbreak\u202e": 1}
    rows = _rows(checked(bars(_summary(**names))))
    assert "<script>alert(1)</script>" == rows[0]["label"]
    assert (62, 400) == (len(rows[1]["label"]), len(rows[1]["name"]))
    assert "line break�" == rows[2]["label"]


def test_names_that_become_equal_keep_their_bars(checked: Check) -> None:
    """Two names of 10,000 characters that differ in the middle get two bars."""
    names = {"x" * 5_000 + middle + "x" * 5_000: 1 for middle in "ab"}
    assert 2 == len({row["label"] for row in _rows(checked(bars(_summary(**names))))})


def test_colours_belong_to_families(checked: Check) -> None:
    """The legend lists the families that are drawn, in their fixed colours; a missing family counts as other."""
    summary = _summary(a=3, b=2).assign(family=pd.Categorical(["communication", None]))
    scale = checked(bars(summary))["layer"][0]["encoding"]["color"]["scale"]
    assert {"domain": ["communication", "other"], "range": ["#D55E00", "#9A9A9A"]} == scale


def test_kernels_of_no_duration(checked: Check) -> None:
    """Kernels that took no time are drawn as such."""
    assert [0] == [row["time"] for row in _rows(checked(bars(_summary(a=0))))]


def test_without_kernels_the_chart_says_so(checked: Check) -> None:
    """An empty summary is a sentence, not an empty picture."""
    assert "No kernel ran" in checked(bars(_summary()))["title"]["subtitle"][0]


def test_wrong_arguments_are_refused() -> None:
    """No bars, a family without colour and a missing column are errors that say so."""
    with pytest.raises(ValueError, match="top: 0 is not at least 1"):
        bars(_summary(a=1), top=0)
    with pytest.raises(ValueError, match=r"family: \['magic'\] are not among"):
        bars(_summary(a=1).assign(family="magic"))
    with pytest.raises(SchemaError, match="total_ns"):
        bars(_summary(a=1).drop(columns="total_ns"))
