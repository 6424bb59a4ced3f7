"""Which findings came or went between two runs, and did the gain that was predicted come true?

A finding of the earlier run that the later one lacks was mended. Its gain was a prediction for the run: the speed-up of
the mean step, or of the mean unit of equal work, is what came true. Of several mended findings nobody can tell which
gained what, so their ranges are joined: together they gain at least what the largest promises at least, and at most
what all save at most, each nanosecond once (`analysis.grouping.speedup_bounds`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfkit.analysis.grouping import speedup_bounds
from perfkit.diagnosis import findings
from perfkit.diagnosis.comparison import Comparison
from perfkit.diagnosis.finding import Finding, Gain
from perfkit.diagnosis.sides import Given, side
from perfkit.format import number

UNKNOWN = (math.nan, math.nan)


@dataclass(frozen=True)
class Outcome:
    """What changed between two runs: findings, the speed-up that was predicted, and the one that came true.

    `predicted`: the lower and the upper end, NaN where no mended finding has a known gain. `speedup`: of the mean step
    or unit, with the ends of its interval; NaN where they are unknown.
    """

    went: tuple[Finding, ...]
    came: tuple[Finding, ...]
    predicted: tuple[float, float]
    speedup: float
    ends: tuple[float, float]

    @property
    def held(self) -> bool | None:
        """Whether the speed-up is within the predicted range, as far as its interval tells; None where unknown."""
        if any(map(math.isnan, (*self.predicted, *self.ends))):
            return None
        low, high = self.predicted
        return self.ends[1] >= low and self.ends[0] <= high

    @property
    def text(self) -> str:
        """The prediction beside what came true, in words; empty where nothing was predicted."""
        if math.isnan(self.predicted[0]):
            return ""
        said = f"predicted: {Gain(*self.predicted, '').text}"
        if self.held is None:
            return f"{said}; what came true is unknown, for the steps do not compare"
        where = "inside" if self.held else "outside"
        low, high = map(number, self.ends)
        true = f"{number(self.speedup)}x (interval {low} to {high})"
        return f"{said}; came true: {true}, {where} the range"


def calibration(outcomes: Iterable[Outcome]) -> str:
    """Return how many predicted ranges held, in a sentence."""
    known = [one.held for one in outcomes if one.held is not None]
    if not known:
        return "calibration: no prediction could be compared with what came true"
    return f"calibration: {sum(known)} of {len(known)} predicted ranges held"


def outcome(before: Given, after: Given, found: Comparison) -> Outcome:
    """Return what came of the earlier run's findings; of repeats the first of each side is diagnosed.

    `found` is the comparison of both.
    """
    old = findings(side("before", before).views[0])
    new = findings(side("after", after).views[0])
    went = _lacking(old, new)
    speedup, ends = _speedup(found)
    return Outcome(went, _lacking(new, old), together(one.gain for one in went), speedup, ends)


def _lacking(of: Sequence[Finding], others: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that the other run lacks: none of its rule and, where it has one, of its owner."""
    known = {(one.rule, one.owner) for one in others}
    return tuple(one for one in of if (one.rule, one.owner) not in known)


def together(gains: Iterable[Gain]) -> tuple[float, float]:
    """Return the range of the speed-up if several findings are mended; NaN where no gain is known.

    What happens once in a recording is no part of a step.
    """
    known = [gain for gain in gains if gain.is_known and not gain.is_once]
    if not known:
        return UNKNOWN
    saved = [1 - 1 / gain.high for gain in known]
    most = speedup_bounds(saved, [1.0] * len(saved)).high
    return max(gain.low for gain in known), most


def _speedup(found: Comparison) -> tuple[float, tuple[float, float]]:
    """Return before / after of the mean step or unit, and the ends of its interval."""
    rows = found.steps[found.steps["statistic"] == "mean"].to_dict("records")
    if not rows or found.other_steps or found.other_setup:
        return math.nan, UNKNOWN
    ratio, low, high = (float(rows[0][name]) for name in ("ratio", "ratio_low", "ratio_high"))
    if not ratio > 0 or not low > 0:
        return math.nan, UNKNOWN
    return 1 / ratio, (1 / high, 1 / low)
