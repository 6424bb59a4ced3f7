"""Which findings came or went between two runs, and whether the predicted gain came true."""

import math
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from perfkit.analysis import compare
from perfkit.diagnosis import predicted
from perfkit.diagnosis.comparison import Comparison, nothing
from perfkit.diagnosis.finding import ONCE, Finding, Gain, Refusal
from perfkit.diagnosis.predicted import Outcome, calibration, outcome, together

NAN = math.nan
NOTHING = Refusal("", "", "")


def gain(low: float, high: float, whole: str = "the run") -> Gain:
    return Gain(low, high, "", None, whole)


def finding(rule: str, owner: str = "") -> Finding:
    of = gain(1.2, 4.7)
    return Finding(rule, f"title of {rule}", "warning", "", (), "", of, {}, owner=owner)


def compared(ratio: float, low: float, high: float, **also: Any) -> Comparison:
    """A comparison whose mean step takes `ratio` times as long."""
    row = {"statistic": "mean", "before_count": 20, "after_count": 20, "before_ns": 1e6}
    row |= {"after_ns": 1e6 * ratio, "difference_ns": 1e6 * (ratio - 1), "ratio": ratio}
    row |= {"ratio_low": low, "ratio_high": high, "verdict": "better"}
    steps = compare.COMPARED_STEPS.make(pd.DataFrame([row]))
    return replace(nothing(NOTHING), steps=steps, refusals=(), **also)


def of(
    monkeypatch: pytest.MonkeyPatch, old: list[Finding], new: list[Finding], found: Comparison
) -> Outcome:
    """What came of findings, of runs that are not looked at."""
    runs: dict[str, list[Finding]] = {"before": old, "after": new}
    monkeypatch.setattr(predicted, "side", lambda name, given: type("S", (), {"views": [name]}))
    monkeypatch.setattr(predicted, "findings", runs.__getitem__)
    return outcome([], [], found)


def test_a_finding_that_only_the_earlier_run_has_went(monkeypatch: pytest.MonkeyPatch) -> None:
    one = of(monkeypatch, [finding("loading")], [finding("launches")], compared(0.5, 0.49, 0.51))
    assert (["loading"], ["launches"]) == (
        [each.rule for each in one.went],
        [each.rule for each in one.came],
    )


def test_a_finding_of_another_owner_is_another_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    one = of(
        monkeypatch,
        [finding("idle", "read()")],
        [finding("idle", "write()")],
        compared(1.0, 0.9, 1.1),
    )
    assert ["read()"] == [each.owner for each in one.went]


def test_a_speedup_of_2_is_inside_1_2_to_4_7(monkeypatch: pytest.MonkeyPatch) -> None:
    one = of(monkeypatch, [finding("loading")], [], compared(0.5, 0.4, 0.625))
    assert one.text == (
        "predicted: 1.2x to 4.7x; came true: 2.00x (interval 1.60 to 2.50), inside the range"
    )


def test_a_speedup_below_the_range_is_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    one = of(monkeypatch, [finding("loading")], [], compared(1.0, 0.99, 1.01))
    assert one.held is False


def test_an_interval_that_reaches_the_range_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 / 0.8 = 1.25 is above 1.2."""
    one = of(monkeypatch, [finding("loading")], [], compared(0.9, 0.8, 1.0))
    assert one.held is True


def test_runs_on_other_gpus_do_not_tell_what_came_true(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(0.5, 0.49, 0.51, other_setup=("different GPUs",))
    one = of(monkeypatch, [finding("loading")], [], found)
    assert one.held is None
    assert one.text.endswith("what came true is unknown, for the steps do not compare")


def test_two_halves_of_the_time_save_all_of_it_once() -> None:
    """Of 1 s they save 0.5 s and 0.25 s: 4 times as fast at most, and 1.5 times at least."""
    assert (1.5, 4.0) == together([gain(1.5, 2.0), gain(1.1, 4 / 3)])


def test_what_happens_once_predicts_nothing_of_a_step() -> None:
    assert math.isnan(together([gain(1.5, 2.0, ONCE)])[0])


def test_nothing_that_went_predicts_nothing() -> None:
    assert "" == Outcome((), (), (NAN, NAN), 2.0, (1.9, 2.1)).text


def test_the_calibration_counts_the_ranges_that_held() -> None:
    held = Outcome((), (), (1.2, 4.7), 2.0, (1.9, 2.1))
    missed = Outcome((), (), (1.2, 1.5), 2.0, (1.9, 2.1))
    unknown = Outcome((), (), (NAN, NAN), 2.0, (1.9, 2.1))
    assert "calibration: 1 of 2 predicted ranges held" == calibration([held, missed, unknown])
