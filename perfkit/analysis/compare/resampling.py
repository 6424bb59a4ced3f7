"""By how much could a median or mean be off, and is a difference better, worse, or none that is seen?

A group is one or several runs, each a series of values in their order of time. Its value is the
mean over its runs of each run's median or mean. The interval comes from resampling: of one or two
runs the values, in blocks, because neighbouring steps are alike; of three runs or more the runs,
because what differs between runs shows in no single one. Deviations are logarithmic, so that slower
by a factor and faster by it are equally far; they are widened for the small number of independent
values. Autocorrelation only ever widens an interval.

A verdict is "better" or "worse" only where the whole interval lies further from 1 than a difference
that matters. A figure that no table gives a direction is "changed", never better. One without an
interval, a single value of a single run, is "changed, not tested": nothing says how much it varies
on its own.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Float
from perfkit.schema import Column

Runs = Sequence[Float]
STATISTICS = ("median", "mean")
CONFIDENCE, RESAMPLES, LEAST_RESAMPLES = 0.95, 2_000, 100
FEWEST = (
    6  # values of a run: of 5 the interval of a mean missed more than 5 in 100 of simulated pairs
)
SEVERAL = 3  # runs from which on the runs are what is resampled
FEWEST_BLOCKS, MOST_BLOCKS = 4, 512
MOST_ALIKE = 0.97  # autocorrelation; beyond it no block of a finite series is long enough
BETTER, WORSE, UNSEEN, UNKNOWN = "better", "worse", "no difference seen", "cannot tell"
CHANGED, UNTESTED, NEW, GONE, SMALL = (
    "changed",
    "changed, not tested",
    "new",
    "gone",
    "too small to matter",
)
LITTLE = {
    BETTER: SMALL,
    WORSE: SMALL,
}  # the verdict on a difference below what matters of a step; else UNSEEN
NOISE = 0.02  # two runs of one program differ by up to this share, in 95 of 100 pairs (convention)
MATTERS = 0.01  # relative difference of an interval that matters
TOLERANCE = 0.05  # relative difference of two values of which no interval is known
# absolute difference of two fractions, in addition: of small shares any change is a large ratio
POINTS = 0.01


class Ratio(NamedTuple):
    """Two groups and after / before; the interval is NaN where there are too few values."""

    before: float
    after: float
    ratio: float
    low: float
    high: float


class _Drawn(NamedTuple):
    """A group's value, the logarithmic deviations of its resamples (None if one is 0), and independent values."""

    value: float
    deviation: Float | None
    independent: float


class Resampling(NamedTuple):
    """How resamples are drawn: "median" or "mean", confidence of the interval, number of resamples and seed.

    `noise`: the share by which two runs of one program differ; it counts below three repeats, which
    show it themselves. `are_pairs`: the values of both groups are pairs, of the same work: both are
    drawn together, below three repeats.
    """

    statistic: str = "median"
    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES
    seed: int = 0
    noise: float = 0.0
    are_pairs: bool = False

    def checked(self) -> Resampling:
        """Return this if it can be used, else raise ValueError with what can be."""
        if self.statistic not in STATISTICS:
            raise ValueError(f"statistic: {self.statistic!r} is not one of {list(STATISTICS)}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence: {self.confidence} is not between 0 and 1")
        if self.resamples < LEAST_RESAMPLES:
            raise ValueError(f"resamples: {self.resamples} is not at least {LEAST_RESAMPLES}")
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise: {self.noise} is not a share of 0 or more, below 1")
        return self


PLAIN = Resampling()
# The one place that says which way a figure is better, by the pattern of its id; the first that
# matches holds. A total depends on how long was recorded, a mean kernel on how much was fused: they
# have no direction.
DIRECTIONS = tomllib.loads(Path(__file__).with_name("directions.toml").read_text(encoding="utf-8"))
Frames = pd.DataFrame | Sequence[pd.DataFrame]
VERDICT = Column(
    "verdict", "category", "better, worse, too small to matter, no difference seen or cannot tell"
)
RATIO = Column("ratio", "float64", "after over before")
LOW = Column("ratio_low", "float64", "lower end of the ratio's interval; NaN: too few values")
HIGH = Column("ratio_high", "float64", "upper end of the ratio's interval; NaN: too few values")
COMPARED = (RATIO, LOW, HIGH, VERDICT)


def enough(runs: Runs) -> bool:
    """Say whether a group has as many values as an interval needs: six in each run, or three runs."""
    return len(runs) >= SEVERAL or (len(runs) > 0 and all(len(run) >= FEWEST for run in runs))


def ratio(before: Runs, after: Runs, how: Resampling) -> Ratio:
    """Return after / before with a confidence interval.

    Each run has at least one value, at least 0. The ratio is NaN where before is 0; low and high
    are NaN below six values in a run and three runs, 0 and infinity where resamples are 0, so that
    nothing is known.

    Source: Politis, Romano: A circular block-resampling procedure for stationary data, 1992.
    Hesterberg: What teachers should know about the bootstrap, 2015 (widening for few values).
    Kalibera, Jones: Rigorous benchmarking in reasonable time, 2013 (runs as the unit).

    >>> found = ratio([np.array([9.0, 10, 11] * 4)], [np.array([18.0, 20, 22] * 4)], Resampling())
    >>> found.ratio, bool(1.7 < found.low < 2 < found.high < 2.3)
    (2.0, True)
    """
    how.checked()
    rng = np.random.default_rng(how.seed)
    length = max((_block(_scored(run, how.statistic)) for run in (*before, *after)), default=1)
    is_alone = min(len(before), len(after)) < SEVERAL
    are_pairs = how.are_pairs and is_alone and [*map(len, before)] == [*map(len, after)]
    old = _drawn(before, how, length, rng)
    new = _drawn(after, how, length, np.random.default_rng(how.seed) if are_pairs else rng)
    quotient = new.value / old.value if old.value else np.nan
    if not (enough(before) and enough(after)) or np.isnan(quotient):
        return Ratio(old.value, new.value, quotient, np.nan, np.nan)
    if old.deviation is None or new.deviation is None:
        return Ratio(old.value, new.value, quotient, 0.0, np.inf)
    # The degrees of freedom of the difference: Welch, Satterthwaite.
    spread = [float(np.var(part.deviation)) for part in (old, new) if part.deviation is not None]
    parts = sum(s**2 / (part.independent - 1) for s, part in zip(spread, (old, new), strict=True))
    freedom = float(sum(spread) ** 2 / parts) if parts else np.inf
    if are_pairs:
        freedom = new.independent - 1
    low, high = _limits(new.deviation - old.deviation, freedom, how.confidence)
    if is_alone:
        low, high = _wider(low, high, how.noise)
    return Ratio(old.value, new.value, quotient, quotient * low, quotient * high)


def interval(runs: Runs, how: Resampling) -> tuple[float, float, float]:
    """Return the value of one group and its interval, NaN where it has too few values."""
    how.checked()
    length = max((_block(_scored(run, how.statistic)) for run in runs), default=1)
    drawn = _drawn(runs, how, length, np.random.default_rng(how.seed))
    if not enough(runs):
        return drawn.value, np.nan, np.nan
    if drawn.deviation is None:
        return drawn.value, 0.0, np.inf
    low, high = _limits(drawn.deviation, drawn.independent - 1, how.confidence)
    return drawn.value, drawn.value * low, drawn.value * high


def _scored(values: Float, statistic: str) -> Float:
    """Return what the statistic is the mean of: the values, or on which side of the median they lie."""
    if statistic == "mean":
        return values
    middle = np.median(values)
    return np.where(values == middle, 0.5, values < middle)


def _block(values: Float) -> int:
    """Return the length of blocks: the best for a first-order autoregressive series, 1 where neighbours differ.

    Politis, White: Automatic block-length selection for the dependent bootstrap, 2004 (corrected
    2009), circular blocks. The autocorrelation of a short series is too low by (1 + 4 rho) / n
    (Marriott, Pope, 1954).
    """
    n, deviation = len(values), values - values.mean()
    squares = deviation @ deviation
    if n <= FEWEST_BLOCKS or squares == 0:
        return 1
    alike = (deviation[1:] @ deviation[:-1]) / squares
    alike = float(np.clip(alike + (1 + 4 * alike) / n, 0, MOST_ALIKE))
    best = 1.5 ** (1 / 3) * (2 * alike / (1 - alike**2)) ** (2 / 3) * n ** (1 / 3)
    return int(np.ceil(max(best, 1)))


def _drawn(runs: Runs, how: Resampling, length: int, rng: np.random.Generator) -> _Drawn:
    """Return a group's value and how its resamples deviate from it."""
    of_runs = [_of_run(run, how, length, rng) for run in runs]
    values = np.array([value for value, _, _ in of_runs])
    value = float(values.mean()) if len(values) else np.nan
    count = len(runs)
    if count >= SEVERAL:
        away = (values - value)[rng.integers(0, count, (how.resamples, count))].mean(axis=1)
        away, independent = away * np.sqrt(count / (count - 1)), float(count)
    else:
        away = (
            np.mean([deviation for _, deviation, _ in of_runs], axis=0) if of_runs else np.zeros(1)
        )
        independent = float(sum(blocks for _, _, blocks in of_runs))
    sound = value > 0 and bool((away > -value).all())
    return _Drawn(value, np.log1p(away / value) if sound else None, independent)


def _of_run(
    values: Float, how: Resampling, length: int, rng: np.random.Generator
) -> tuple[float, Float, float]:
    """Return the statistic of one run, the deviations of its resamples, and the number of its blocks."""
    n, scores = len(values), _scored(values, how.statistic)
    length = max(min(length, max(n // FEWEST_BLOCKS, 1)), -(-n // MOST_BLOCKS))
    ends = np.concatenate(
        [[0.0], np.cumsum(np.concatenate([scores, scores[:length]]) - scores.mean())]
    )
    blocks = (ends[length : length + n] - ends[:n]) / length
    away = blocks[rng.integers(0, n, (how.resamples, n // length))].mean(axis=1)
    away *= np.sqrt(n / max(n - length, 1))  # the spread around a mean of its own is too small
    if how.statistic == "mean":
        return float(values.mean()), away, n / length
    middle = float(np.median(values))
    return middle, np.quantile(values, np.clip(0.5 - away, 0, 1)) - middle, n / length


def _limits(deviation: Float, freedom: float, confidence: float) -> tuple[float, float]:
    """Return the factors to the ends of the interval: percentiles, wider by Student's t over the normal quantile."""
    tail = (1 - confidence) / 2
    wider = _student(1 - tail, freedom) / NormalDist().inv_cdf(1 - tail)
    low, high = np.exp(np.quantile(deviation, [tail, 1 - tail]) * wider)
    return float(low), float(high)


def _wider(low: float, high: float, noise: float) -> tuple[float, float]:
    """Return the factors to the ends of an interval that holds the noise between runs too.

    Both are independent of each other: the squares of their logarithms add up.
    """
    log_noise = math.log1p(noise)
    return math.exp(-math.hypot(math.log(low), log_noise)), math.exp(
        math.hypot(math.log(high), log_noise)
    )


def _student(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t (Abramowitz, Stegun, 26.7.5): within 4 % from 2 degrees of freedom on."""
    x = NormalDist().inv_cdf(probability)
    return (
        x
        + (x**3 + x) / (4 * freedom)
        + (5 * x**5 + 16 * x**3 + 3 * x) / (96 * freedom**2)
        + (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * freedom**3)
    )


def direction(figure: str) -> str:
    """Return whether "lower" or "higher" is better for the figure of this id; empty where neither is."""
    ways = (
        way
        for way, patterns in DIRECTIONS.items()
        for pattern in patterns
        if fnmatchcase(figure, pattern)
    )
    return next(ways, "")


def of_interval(low: float, high: float, *, better: str = "lower", matters: float = MATTERS) -> str:
    """Return the verdict on a ratio after / before whose interval reaches from `low` to `high`, NaN where not known.

    `better` is "lower", "higher" or empty for neither. The interval must lie beyond 1 + matters or
    1 / (1 + matters).
    """
    if math.isnan(low) or math.isnan(high):
        return UNKNOWN
    if low > 1 + matters:
        return _verdict(better, "higher")
    return _verdict(better, "lower") if high < 1 / (1 + matters) else UNSEEN


def of_values(
    before: float, after: float, *, better: str, unit: str = "", matters: float = TOLERANCE
) -> str:
    """Return the verdict on two values of which no interval is known, NaN where a run lacks it.

    They must differ by the share `matters` of before, and fractions (unit "1") by one point in a
    hundred as well.
    """
    if math.isnan(before) and math.isnan(after):
        return UNKNOWN
    if math.isnan(before) or math.isnan(after):
        return NEW if math.isnan(before) else GONE
    apart = abs(after - before)
    if apart <= matters * abs(before) or (unit == "1" and apart <= POINTS):
        return UNSEEN
    return _verdict(better, "higher" if after > before else "lower")


def _verdict(better: str, moved: str) -> str:
    """Return the verdict on a value that moved "higher" or "lower"."""
    if not better:
        return CHANGED
    return BETTER if moved == better else WORSE


def compared(change: Ratio, unit: str, matters: float) -> dict[str, Any]:
    """Return a ratio as columns before, after and difference with their unit, the interval and the verdict."""
    return {
        f"before{unit}": change.before,
        f"after{unit}": change.after,
        f"difference{unit}": change.after - change.before,
        "ratio": change.ratio,
        "ratio_low": change.low,
        "ratio_high": change.high,
        "verdict": of_interval(change.low, change.high, matters=matters),
    }


def listed(given: Frames) -> list[pd.DataFrame]:
    """Return the frames of a side: one per repeat."""
    return [given] if isinstance(given, pd.DataFrame) else list(given)
