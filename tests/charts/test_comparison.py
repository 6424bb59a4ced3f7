"""Two runs side by side, and the waterfall of several."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest

from perfkit.analysis.compare import ledger
from perfkit.analysis.steps import STEPS
from perfkit.charts.comparison import VERDICT_COLOURS, families, intervals, steps, utilisation
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


# The four-step optimisation of the guide.
GUIDE = {"FP32": 0.65, "BF16": 0.78, "8 workers, pinned": 0.87, "batch 8": 0.92, "torch.compile": 0.95}


def steady(milliseconds: float) -> pd.DataFrame:
    """Eight steady steps of one length."""
    number, whole = np.arange(8), round(milliseconds * 1e6)
    frame = {"rank": 0, "step": number, "start_ns": number * whole, "dur_ns": whole}
    return STEPS.make(pd.DataFrame({**frame, "name": "step", "how": "nvtx", "steady": True}))


SERIES = ledger({"before": steady(200), "bf16": steady(150), "workers": steady(160), "compile": steady(80)})


def test_times_of_something_else_are_called_so(checked: Check) -> None:
    """Axis and legend say what the times are of; bars are the same."""
    spec, usual = checked(steps(SERIES, of="time by sample")), checked(steps(SERIES))
    bars = spec["layer"][0]
    assert bars["encoding"]["x"]["title"].startswith("time by sample (")
    assert {"time by sample", "better", "worse"} >= {row["verdict"] for row in bars["rows"]} > {"time by sample"}
    assert [row["end"] for row in bars["rows"]] == [row["end"] for row in usual["layer"][0]["rows"]]


def test_steps_by_hand(checked: Check) -> None:
    """200 ms, then -50, +10 and -80: bars float from one step time to the next, the last reaches from 0 to 80."""
    spec = checked(steps(SERIES))
    bars, _, words = spec["layer"]
    assert [(0, 200), (200, 150), (150, 160), (160, 80), (0, 80)] == [
        (row["begin"], row["end"]) for row in bars["rows"]
    ]
    assert ["step time", "better", "worse", "better", "step time"] == [row["verdict"] for row in bars["rows"]]
    assert ["200 ms", "150 ms (-25.0 %)", "160 ms (+6.7 %)", "80.0 ms (-50.0 %)", "80.0 ms"] == [
        row["words"] for row in words["rows"]
    ]
    assert ["before", "1. bf16", "2. workers", "3. compile", "all changes together"] == bars["encoding"]["y"]["sort"]
    assert "step time (ms)" == bars["encoding"]["x"]["title"]
    assert "3 changes take the step from 200 ms to 80.0 ms: 2.50 times as fast" == spec["title"]["text"]


def test_one_run_and_one_change(checked: Check) -> None:
    """One run is a bar of its own; one change says so."""
    assert "One run, whose steps take 200 ms" == checked(steps(SERIES.iloc[:1]))["title"]["text"]
    assert 1 == len(checked(steps(SERIES.iloc[:1]))["layer"][0]["rows"])
    assert checked(steps(SERIES.iloc[:2]))["title"]["text"].startswith("1 change takes")


def test_runs_without_steps_are_left_out(checked: Check) -> None:
    """A run without a step time has no bar; without any there is a sentence."""
    gap = ledger({"a": steady(200), "b": STEPS.empty(), "c": steady(100)})
    assert ["a", "1. c", "all changes together"] == [row["label"] for row in checked(steps(gap))["layer"][0]["rows"]]
    assert "No step times" == checked(steps(gap.iloc[1:2]))["title"]["text"]


def test_utilisation_of_the_guide(checked: Check) -> None:
    """65 -> 78 -> 87 -> 92 -> 95 %: 13, 9, 5 and 3 points, each on top of what was reached."""
    spec = checked(utilisation(ledger({label: STEPS.empty() for label in GUIDE}, utilisation=GUIDE)))
    bars, _ = spec["layer"]
    gained = [row for row in bars["rows"] if row["part"] == "gained"]
    assert [0.0, 0.13, 0.09, 0.05, 0.03] == pytest.approx([row["end"] - row["begin"] for row in gained])
    assert ["65.0 %", "78.0 % (+13.0 points)", "87.0 % (+9.00 points)"] == [row["words"] for row in gained[:3]]
    assert "GPU utilisation goes from 65.0 % to 95.0 % in 4 changes" == spec["title"]["text"]
    assert "GPU utilisation (%)" == bars["encoding"]["x"]["title"]


def test_utilisation_that_falls(checked: Check) -> None:
    """From 80 to 60 %: 60 reached, 20 points lost."""
    frame = pd.DataFrame({"label": ["a", "b"], "utilisation_frac": [0.8, 0.6]})
    rows = checked(utilisation(frame, of="SM activity"))["layer"][0]["rows"]
    assert [("reached before", 0.0, 0.6), ("lost", 0.6, 0.8)] == [
        (row["part"], row["begin"], row["end"]) for row in rows if row["label"] == "1. b"
    ]
    assert "60.0 % (-20.0 points)" == rows[-1]["words"]


def test_labels_are_text(checked: Check) -> None:
    """Labels with markup and line breaks are shown as text on one line."""
    spec = checked(steps(ledger({"<b>\na": steady(2), "c" * 99: steady(1)})))
    assert ["<b> a", "1. " + "c" * 26] == [row["label"][:29] for row in spec["layer"][0]["rows"][:2]]
    assert "No <i>" == checked(utilisation(SERIES, of="<i>"))["title"]["text"]


def test_a_waterfall_refuses_wrong_frames() -> None:
    """Missing columns, unknown verdicts, step times of 0 and percent instead of a fraction are refused."""
    with pytest.raises(SchemaError, match="change_ns"):
        steps(SERIES.drop(columns="change_ns"))
    with pytest.raises(ValueError, match="verdict"):
        steps(SERIES.assign(verdict="great"))
    with pytest.raises(ValueError, match=r"step_ns: 0.0 is not above 0"):
        steps(SERIES.assign(step_ns=0.0))
    with pytest.raises(ValueError, match="not a fraction between 0 and 1"):
        utilisation(SERIES.assign(utilisation_frac=65.0))
