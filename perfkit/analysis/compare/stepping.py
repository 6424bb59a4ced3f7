"""Did the steps get faster, and which of a series of changes made them so?

Functions
---------
steps    the step times of two runs
ledger   the step times of a series of runs
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from perfkit.analysis.compare.resampling import (
    CONFIDENCE,
    RESAMPLES,
    STATISTICS,
    Ratio,
    Resampling,
    Runs,
    interval,
    ratio,
)
from perfkit.analysis.compare.verdicts import MATTERS, of_interval
from perfkit.analysis.steps import STEPS
from perfkit.schema import Column, Table

Frames = pd.DataFrame | Sequence[pd.DataFrame]

VERDICT = Column("verdict", "category", "better, worse, no difference seen or cannot tell")
RATIO = Column("ratio", "float64", "after over before")
LOW = Column("ratio_low", "float64", "lower end of the ratio's interval; NaN: too few values")
HIGH = Column("ratio_high", "float64", "upper end of the ratio's interval; NaN: too few values")

COMPARED_STEPS = Table(
    "COMPARED_STEPS",
    "a statistic of the step times of two runs",
    (
        Column("statistic", "category", "median or mean"),
        Column("before_count", "int64", "steady steps before, of all runs"),
        Column("after_count", "int64", "steady steps after, of all runs"),
        Column("before_ns", "float64", "step time before, ns"),
        Column("after_ns", "float64", "step time after, ns"),
        Column("difference_ns", "float64", "after less before, ns"),
        RATIO,
        LOW,
        HIGH,
        VERDICT,
    ),
    (),  # the median first
)
LEDGER = Table(
    "LEDGER",
    "a run of a series",
    (
        Column("place", "int64", "place in the series, from 0"),
        Column("label", "string", "what was changed"),
        Column("count", "int64", "steady steps"),
        Column("step_ns", "float64", "median step, ns; NaN without steady steps"),
        Column("step_low_ns", "float64", "lower end of its interval, ns; NaN: too few steps"),
        Column("step_high_ns", "float64", "upper end of its interval, ns; NaN: too few steps"),
        Column("change_ns", "float64", "step time less that of the run before, ns; NaN for the first"),
        Column("ratio", "float64", "step time over that of the run before; NaN for the first"),
        LOW,
        HIGH,
        VERDICT,
        Column("cumulative_ratio", "float64", "step time over that of the first run"),
        Column("cumulative_low", "float64", "lower end of its interval"),
        Column("cumulative_high", "float64", "upper end of its interval"),
        Column("speedup", "float64", "step time of the first run over this one's"),
        Column("utilisation_frac", "float64", "utilisation as given; NaN where none was"),
    ),
    ("place",),
)
_NONE = Ratio(*[math.nan] * 5)


def steps(
    before: Frames,
    after: Frames,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
    matters: float = MATTERS,
) -> pd.DataFrame:
    """Return how the steady steps of two runs, or of two groups of repeats, compare.

    A step that several ranks take lasts as long as on the slowest of them. Steps that follow each other are alike:
    they are resampled in blocks; of three repeats or more the repeats are (`resampling`).

    Parameters
    ----------
    before, after
        What `analysis.steps.detect` returned, or a sequence of such frames, one per repeat; steps that are not steady
        are left out, and repeats without steady steps.
    confidence
        Of the interval, above 0 and below 1.
    resamples
        How many, at least 100.
    seed
        Of the random numbers: the same seed gives the same interval.
    matters
        The verdict is better or worse only where the whole interval of the ratio lies further than this from 1.

    Returns
    -------
    pandas.DataFrame
        COMPARED_STEPS: a row for the median, which is the verdict on the usual step, and one for the mean, on which
        the time of the whole run depends; empty where a side has no steady steps. Times float64 ns; `ratio` after /
        before, its interval NaN and the verdict "cannot tell" below six steps in a run and three runs.

    Raises
    ------
    SchemaError
        If a frame is not what `detect` returns.
    ValueError
        If the confidence or the number of resamples cannot be used.

    Examples
    --------
    >>> len(steps(STEPS.empty(), STEPS.empty()))
    0
    """
    old, new = series(before), series(after)
    how = Resampling("median", confidence, resamples, seed).checked()
    if not old or not new:
        return COMPARED_STEPS.empty()
    count = {"before_count": sum(map(len, old)), "after_count": sum(map(len, new))}
    rows = []
    for statistic in STATISTICS:
        found = ratio(old, new, how._replace(statistic=statistic))
        rows.append({"statistic": statistic, **count, **compared(found, "_ns", matters)})
    return COMPARED_STEPS.make(pd.DataFrame(rows))


def compared(found: Ratio, unit: str, matters: float) -> dict[str, Any]:
    """Return a ratio as columns before, after and difference with their unit, the interval and the verdict."""
    return {
        f"before{unit}": found.before,
        f"after{unit}": found.after,
        f"difference{unit}": found.after - found.before,
        "ratio": found.ratio,
        "ratio_low": found.low,
        "ratio_high": found.high,
        "verdict": of_interval(found.low, found.high, matters=matters),
    }


def series(given: Frames) -> Runs:
    """Return the durations of the steady steps of each run in order, ns; of several ranks the slowest one's."""
    frames = [given] if isinstance(given, pd.DataFrame) else list(given)
    found = []
    for frame in frames:
        steady = STEPS.check(frame)[frame["steady"]]
        slowest = steady.groupby("step")["dur_ns"].max()
        found.append(slowest.to_numpy(np.float64))
    return [run for run in found if len(run)]


def ledger(
    runs: Mapping[str, Frames],
    *,
    utilisation: Mapping[str, float] | None = None,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
    matters: float = MATTERS,
) -> pd.DataFrame:
    """Return a series of runs, each with one more change: step time, and change against the run before and the first.

    Cumulative ratios compare with the first run directly: they are no products of single ones.

    Parameters
    ----------
    runs
        Label -> steps of that run, or of its repeats, as in `steps`; in the order of the changes; may be empty.
    utilisation
        Label -> utilisation of that run, 0..1, of any one meaning.
    confidence, resamples, seed, matters
        As in `steps`.

    Returns
    -------
    pandas.DataFrame
        LEDGER, a row per run in their order; step times are medians. A run without steady steps has NaN, and the next
        is compared with the last that has some; verdicts are against that run.

    Raises
    ------
    SchemaError
        If a frame is not what `detect` returns.
    ValueError
        If a utilisation is outside 0..1 or of no run, or an argument cannot be used.

    Examples
    --------
    >>> ledger({"baseline": STEPS.empty()}, utilisation={"baseline": 0.65})["utilisation_frac"].tolist()
    [0.65]
    """
    used = _checked(runs, utilisation or {})
    how = Resampling("median", confidence, resamples, seed).checked()
    rows: list[dict[str, Any]] = []
    known: list[Runs] = []
    for place, (label, frames) in enumerate(runs.items()):
        found = series(frames)
        step = dict(zip(("step_ns", "step_low_ns", "step_high_ns"), interval(found, how), strict=True))
        last = ratio(known[-1], found, how) if known and found else _NONE
        first = ratio(known[0], found, how) if known and found else _NONE
        told = compared(last, "_ns", matters) if known and found else dict.fromkeys(COMPARED_STEPS.column_names)
        row = {"place": place, "label": label, "count": sum(map(len, found)), **step}
        row |= {"change_ns": told["difference_ns"], **{key: told[key] for key in ("ratio", "ratio_low", "ratio_high")}}
        row |= {"verdict": told["verdict"], "utilisation_frac": used.get(label, math.nan)}
        rows.append(row | _cumulative(first, has_steps=bool(found)))
        known += [found] if found else []
    return LEDGER.make(pd.DataFrame(rows, columns=LEDGER.column_names))


def _cumulative(first: Ratio, *, has_steps: bool) -> dict[str, float]:
    """Return the comparison with the first run; that of the first with itself is 1."""
    own = 1.0 if has_steps and math.isnan(first.ratio) else math.nan
    whole, low, high = (own if math.isnan(first.ratio) else end for end in (first.ratio, first.low, first.high))
    speedup = 1 / whole if whole else math.nan
    return {"cumulative_ratio": whole, "cumulative_low": low, "cumulative_high": high, "speedup": speedup}


def _checked(runs: Mapping[str, Frames], utilisation: Mapping[str, float]) -> Mapping[str, float]:
    strange = [label for label in utilisation if label not in runs]
    if strange:
        raise ValueError(f"utilisation: {strange} are not among {list(runs)}")
    outside = {label: share for label, share in utilisation.items() if not 0 <= share <= 1}
    if outside:
        raise ValueError(f"utilisation: {outside} is not between 0 and 1")
    return utilisation
