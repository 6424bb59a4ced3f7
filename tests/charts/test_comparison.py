"""Time per family before and after, and ratios with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd
import pytest

from perfkit.charts.comparison import VERDICT_COLOURS, families, intervals
from perfkit.errors import SchemaError

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]


def table(*rows: tuple[str, float, float, str]) -> pd.DataFrame:
    """What the analysis says of families: (family, before in ms, after in ms, verdict); intervals of 10 %."""
    frame = pd.DataFrame(rows, columns=["family", "before_ns", "after_ns", "verdict"])
    frame[["before_ns", "after_ns"]] *= 1e6
    ratio = frame["after_ns"] / frame["before_ns"].where(frame["before_ns"] > 0)
    differ = frame["after_ns"] - frame["before_ns"]
    return frame.assign(difference_ns=differ, ratio=ratio, ratio_low=0.9 * ratio, ratio_high=1.1 * ratio)


TRAINING = table(("copy", 1.0, 1.0, "no difference seen"), ("gemm", 5.0, 2.5, "better"), ("softmax", 0.0, 0.2, "new"))


def test_families_side_by_side(checked: Check) -> None:
    """The family that moved most comes first; before and after stand beside each other, in ms."""
    spec = checked(families(TRAINING))
    bars, words = spec["layer"]
    assert [("gemm", "before", 5.0), ("softmax", "before", 0.0), ("copy", "before", 1.0)] == [
        (row["label"], row["side"], row["time"]) for row in bars["rows"][:3]
    ]
    assert [2.5, 0.2, 1.0] == pytest.approx([row["time"] for row in bars["rows"][3:]])
    assert ["-2.50 ms · better", "+200 µs · new", "0 ns · no difference seen"] == [
        row["words"] for row in words["rows"][3:]
    ]
    assert ["gemm", "softmax", "copy"] == bars["encoding"]["y"]["sort"]
    assert "kernel time per step (ms)" == bars["encoding"]["x"]["title"]
    assert "Kernel time per step falls by 38.3 %, from 6.00 ms to 3.70 ms" == spec["title"]["text"]


@pytest.mark.parametrize(
    ("after", "title"),
    [(6.0, "rises by 20.0 %, from 5.00 ms to 6.00 ms"), (5.01, "stays at 5.01 ms"), (0.0, "falls by 100 %")],
)
def test_title_states_what_moved(checked: Check, after: float, title: str) -> None:
    """The title says whether kernel time fell, rose or stayed."""
    assert title in checked(families(table(("gemm", 5.0, after, "changed"))))["title"]["text"]


def test_a_run_from_nothing(checked: Check) -> None:
    """Where there was no kernel before, the title names both times and divides by none."""
    title = checked(families(table(("gemm", 0.0, 5.0, "new")), per="run"))["title"]["text"]
    assert "Kernel time per run: from 0 ns to 5.00 ms" == title


def test_intervals_and_verdicts(checked: Check) -> None:
    """Point, interval and words of each ratio; a new family, which has no ratio, is left out."""
    spec = checked(intervals(TRAINING, label="family"))
    one, whiskers, points, words = spec["layer"]
    assert [1.0, 1.0] == [row["one"] for row in one["rows"]]
    assert [(0.9, 1.0, 1.1), (0.45, 0.5, 0.55)] == [
        pytest.approx((row["low"], row["ratio"], row["high"])) for row in whiskers["rows"]
    ]
    assert "0.500 (0.450 to 0.550) · better" == words["rows"][1]["words"]
    assert "log" == points["encoding"]["x"]["scale"]["type"]
    assert ["better", "no difference seen"] == points["encoding"]["color"]["scale"]["domain"]
    assert "Of 2: 1 better, 1 no difference seen" == spec["title"]["text"]


def test_ratios_without_an_interval_and_beyond_the_axis(checked: Check) -> None:
    """A ratio of which no interval is known says so; an end that is not known stays inside the picture."""
    frame = table(("a", 1.0, 2.0, "cannot tell"), ("b", 1.0, 900.0, "worse"))
    frame = frame.assign(ratio_low=[math.nan, 0.0], ratio_high=[math.nan, math.inf])
    spec = checked(intervals(frame, label="family"))
    first, second = spec["layer"][1]["rows"]
    assert (2.0, 2.0) == (first["low"], first["high"])
    assert "2.00 (no interval)" == first["told"]
    assert "900 (0 to ∞)" == second["told"]
    low, high = spec["layer"][2]["encoding"]["x"]["scale"]["domain"]
    assert low < second["low"] < second["high"] < high


def test_names_are_text(checked: Check) -> None:
    """A family with markup and line breaks is shown as text on one line; equal labels keep rows of their own."""
    frame = table(*((f"<b>\n{'x' * 90}{i}y" + "z" * 30, 1.0, 2.0, "worse") for i in range(2)))
    rows = checked(intervals(frame, label="family"))["layer"][2]["rows"]
    assert 2 == len({row["place"] for row in rows})
    assert all("\n" not in row["label"] and len(row["label"]) <= 46 for row in rows)
    checked(families(frame, per="<i>\n"))


def test_nothing_to_compare(checked: Check) -> None:
    """Empty frames, and ratios of nothing, are a sentence."""
    assert "No kernels to compare" == checked(families(TRAINING.iloc[:0]))["title"]["text"]
    assert "Nothing to compare" == checked(intervals(TRAINING.iloc[2:], label="family"))["title"]["text"]


def test_wrong_frames_are_refused() -> None:
    """A missing column, an unknown verdict and a negative time are refused."""
    with pytest.raises(SchemaError, match="ratio_low"):
        intervals(TRAINING.drop(columns="ratio_low"), label="family")
    with pytest.raises(ValueError, match=r"verdict: \['great'\] are not among"):
        families(TRAINING.assign(verdict="great"))
    with pytest.raises(ValueError, match="below 0"):
        families(TRAINING.assign(after_ns=-1.0))


def test_verdicts_have_colours_of_their_own() -> None:
    """No two verdicts share a colour."""
    assert len(VERDICT_COLOURS) == len(set(VERDICT_COLOURS.values()))
