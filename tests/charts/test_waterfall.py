"""Waterfalls of a series of changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest

from perfkit.analysis.compare import ledger
from perfkit.analysis.steps import STEPS
from perfkit.charts.comparison import steps, utilisation
from perfkit.errors import SchemaError

Check = Callable[[alt.TopLevelMixin], dict[str, Any]]

# The four-step optimisation of the guide.
GUIDE = {"FP32": 0.65, "BF16": 0.78, "8 workers, pinned": 0.87, "batch 8": 0.92, "torch.compile": 0.95}


def run(milliseconds: float) -> pd.DataFrame:
    """Eight steady steps of one length."""
    number, whole = np.arange(8), round(milliseconds * 1e6)
    frame = {"rank": 0, "step": number, "start_ns": number * whole, "dur_ns": whole}
    return STEPS.make(pd.DataFrame({**frame, "name": "step", "how": "nvtx", "steady": True}))


SERIES = ledger({"before": run(200), "bf16": run(150), "workers": run(160), "compile": run(80)})


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
    gap = ledger({"a": run(200), "b": STEPS.empty(), "c": run(100)})
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
    spec = checked(steps(ledger({"<b>\na": run(2), "c" * 99: run(1)})))
    assert ["<b> a", "1. " + "c" * 26] == [row["label"][:29] for row in spec["layer"][0]["rows"][:2]]
    assert "No <i>" == checked(utilisation(SERIES, of="<i>"))["title"]["text"]


def test_wrong_frames_are_refused() -> None:
    """Missing columns, unknown verdicts, step times of 0 and percent instead of a fraction are refused."""
    with pytest.raises(SchemaError, match="change_ns"):
        steps(SERIES.drop(columns="change_ns"))
    with pytest.raises(ValueError, match="verdict"):
        steps(SERIES.assign(verdict="great"))
    with pytest.raises(ValueError, match=r"step_ns: 0.0 is not above 0"):
        steps(SERIES.assign(step_ns=0.0))
    with pytest.raises(ValueError, match="not a fraction between 0 and 1"):
        utilisation(SERIES.assign(utilisation_frac=65.0))
