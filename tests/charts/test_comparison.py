"""Two runs side by side, and the waterfall of several."""

import math

import pandas as pd
import pytest
from analysis import spans
from charts.checking import checked, drawn, title

from perfkit.analysis.compare import ledger
from perfkit.analysis.steps import STEPS
from perfkit.charts.comparison import VERDICT_COLOURS, families, intervals, steps, utilisation


def table(*rows: tuple[str, float, float, str]) -> pd.DataFrame:
    """What the analysis says of families: (family, before in ms, after in ms, verdict); intervals of 10 %."""
    frame = pd.DataFrame(rows, columns=["family", "before_ns", "after_ns", "verdict"])
    frame[["before_ns", "after_ns"]] *= 1e6
    ratio = frame["after_ns"] / frame["before_ns"].where(frame["before_ns"] > 0)
    differ = frame["after_ns"] - frame["before_ns"]
    return frame.assign(
        difference_ns=differ, ratio=ratio, ratio_low=0.9 * ratio, ratio_high=1.1 * ratio
    )


TRAINING = table(
    ("copy", 1.0, 1.0, "no difference seen"),
    ("gemm", 5.0, 2.5, "better"),
    ("softmax", 0.0, 0.2, "new"),
)


def test_families_side_by_side() -> None:
    spec = checked(families(TRAINING))
    bars, words = spec["layer"]
    rows = [("gemm", "before", 5.0), ("softmax", "before", 0.0), ("copy", "before", 1.0)]
    assert rows == drawn(bars, "label", "side", "time")[:3]
    assert [2.5, 0.2, 1.0] == pytest.approx([time for (time,) in drawn(bars, "time")[3:]])
    verdicts = [("-2.50 ms · better",), ("+200 µs · new",), ("0 ns · no difference seen",)]
    assert verdicts == drawn(words, "words")[3:]
    assert "Kernel time per step falls by 38.3 %, from 6.00 ms to 3.70 ms" == title(spec)


def test_intervals_and_verdicts() -> None:
    spec = checked(intervals(TRAINING, label="family"))  # a new family has no ratio
    one, whiskers, points, words = spec["layer"]
    assert [(1.0,), (1.0,)] == drawn(one, "one")
    rows = [(0.9, 1.0, 1.1), (0.45, 0.5, 0.55)]
    assert rows == [pytest.approx(row) for row in drawn(whiskers, "low", "ratio", "high")]
    assert ("0.500 (0.450 to 0.550) · better",) == drawn(words, "words")[1]
    assert ["better", "no difference seen"] == points["encoding"]["color"]["scale"]["domain"]
    assert "Of 2: 1 better, 1 no difference seen" == title(spec)
    assert len(VERDICT_COLOURS) == len(set(VERDICT_COLOURS.values()))


def test_intervals_that_are_missing_or_endless_have_a_place() -> None:
    frame = table(("a", 1.0, 2.0, "cannot tell"), ("b", 1.0, 900.0, "worse"))
    spec = checked(
        intervals(
            frame.assign(ratio_low=[math.nan, 0.0], ratio_high=[math.nan, math.inf]), label="family"
        )
    )
    first, (start, end, told) = drawn(spec["layer"][1], "low", "high", "told")
    assert (2.0, 2.0, "2.00 (no interval)") == first
    assert "900 (0 to ∞)" == told
    low, high = spec["layer"][2]["encoding"]["x"]["scale"]["domain"]
    assert low < start < end < high


def test_names_are_text() -> None:
    frame = table(*((f"<b>\n{'x' * 90}{i}y" + "z" * 30, 1.0, 2.0, "worse") for i in range(2)))
    rows = drawn(checked(intervals(frame, label="family"))["layer"][2], "place", "label")
    assert 2 == len({place for place, _ in rows})
    assert all("\n" not in label and len(label) <= 46 for _, label in rows)
    checked(families(frame, per="<i>\n"))
    spec = checked(steps(ledger({"<b>\na": steady(2), "c" * 99: steady(1)})))
    assert ["<b> a", "1. " + "c" * 26] == [label[:29] for (label,) in drawn(spec, "label")[:2]]
    assert "No <i>" == title(utilisation(SERIES, of="<i>"))


# The four-step optimisation of the guide.
GUIDE = {
    "FP32": 0.65,
    "BF16": 0.78,
    "8 workers, pinned": 0.87,
    "batch 8": 0.92,
    "torch.compile": 0.95,
}


def steady(milliseconds: float) -> pd.DataFrame:
    whole = round(milliseconds * 1e6)
    return spans.steps(*((number * whole, (number + 1) * whole) for number in range(8)))


SERIES = ledger(
    {"before": steady(200), "bf16": steady(150), "workers": steady(160), "compile": steady(80)}
)


def test_steps_by_hand() -> None:
    spec = checked(steps(SERIES))
    bars, _, words = spec["layer"]
    assert [
        (0, 200, "step time"),
        (200, 150, "better"),
        (150, 160, "worse"),
        (160, 80, "better"),
        (0, 80, "step time"),
    ] == drawn(bars, "begin", "end", "verdict")
    times = ["200 ms", "150 ms (-25.0 %)", "160 ms (+6.7 %)", "80.0 ms (-50.0 %)", "80.0 ms"]
    assert times == [word for (word,) in drawn(words, "words")]
    assert "3 changes take the step from 200 ms to 80.0 ms: 2.50 times as fast" == title(spec)
    other = checked(steps(SERIES, of="time by sample"))["layer"][0]
    assert other["encoding"]["x"]["title"].startswith("time by sample (")
    assert {("time by sample",), ("better",), ("worse",)} == {*drawn(other, "verdict")}
    assert drawn(bars, "end") == drawn(other, "end")


def test_runs_without_steps_or_kernels() -> None:
    gap = ledger({"a": steady(200), "b": STEPS.empty(), "c": steady(100)})
    assert [("a",), ("1. c",), ("all changes together",)] == drawn(checked(steps(gap)), "label")
    assert "No step times" == title(steps(gap.iloc[1:2]))
    assert "No kernels to compare" == title(families(TRAINING.iloc[:0]))
    assert "Nothing to compare" == title(intervals(TRAINING.iloc[2:], label="family"))


def test_utilisation_of_the_guide() -> None:
    spec = checked(
        utilisation(ledger({label: STEPS.empty() for label in GUIDE}, utilisation=GUIDE))
    )
    gained = [row for row in drawn(spec, "part", "begin", "end", "words") if row[0] == "gained"]
    assert [0.0, 0.13, 0.09, 0.05, 0.03] == pytest.approx(
        [end - begin for _, begin, end, _ in gained]
    )
    assert ["65.0 %", "78.0 % (+13.0 points)", "87.0 % (+9.00 points)"] == [
        words for *_, words in gained[:3]
    ]
    assert "GPU utilisation goes from 65.0 % to 95.0 % in 4 changes" == title(spec)
    falling = utilisation(
        pd.DataFrame({"label": ["a", "b"], "utilisation_frac": [0.8, 0.6]}), of="SM activity"
    )
    rows = drawn(checked(falling), "label", "part", "begin", "end", "words")
    assert [("reached before", 0.0, 0.6), ("lost", 0.6, 0.8)] == [
        row[1:4] for row in rows if row[0] == "1. b"
    ]
    assert "60.0 % (-20.0 points)" == rows[-1][-1]
