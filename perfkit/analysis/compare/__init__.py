"""Is the run after a change faster than the one before, where did the time move, and is the difference one?

`before` and `after` are one table of each run, or a sequence of tables, one per repeat; they may be
empty; another table raises SchemaError. A difference is after less before, a ratio after over
before: below 1 is faster. Kernel times are per step wherever kernels carry a step (`in_steps`):
runs are recorded for different lengths; ValueError if only one side has steps.

A ratio of step or family times has a confidence interval, resampled as `how` says
(`resampling.Resampling`); ValueError if that cannot be used. The interval is NaN where there are
too few values. A verdict needs the whole interval to lie further from 1 than what `matters`, 1 % by
default. Values without an interval differ from 5 % (`tolerance`) on, and are then changed, not
better or worse.
"""

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import pandas as pd

from perfkit.analysis import readings, timeline
from perfkit.analysis.causes import covered
from perfkit.analysis.compare import resampling, units
from perfkit.analysis.compare.pairs import PATHS, families, in_steps, kernels, launches, paths
from perfkit.analysis.compare.resampling import (
    FEWEST,
    LITTLE,
    MATTERS,
    NOISE,
    TOLERANCE,
    UNSEEN,
    of_interval,
)
from perfkit.analysis.intervals import Intervals, devices, ends, merge
from perfkit.analysis.steps import STEPS, last_phase, steady
from perfkit.schema import Column, Table
from perfkit.tables import SAMPLES

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
        *resampling.COMPARED,
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
        Column(
            "change_ns", "float64", "step time less that of the run before, ns; NaN for the first"
        ),
        Column("ratio", "float64", "step time over that of the run before; NaN for the first"),
        resampling.LOW,
        resampling.HIGH,
        resampling.VERDICT,
        Column("cumulative_ratio", "float64", "step time over that of the first run"),
        Column("cumulative_low", "float64", "lower end of its interval"),
        Column("cumulative_high", "float64", "upper end of its interval"),
        Column("speedup", "float64", "step time of the first run over this one's"),
        Column("utilisation_frac", "float64", "utilisation as given; NaN where none was"),
    ),
    ("place",),
)
_NONE = resampling.Ratio(*[math.nan] * 5)
NAMES = ("computation", "exposed_communication", "other_kernels", "exposed_copy", "idle")
STEP_PARTS = Table(
    "STEP_PARTS",
    "a steady step, split into parts that sum to its time",
    (
        Column("step", "int64", "number of the step"),
        *(
            Column(f"{name}_ns", "float64", f"{name.replace('_', ' ')}, ns of a GPU")
            for name in NAMES
        ),
    ),
    ("step",),
)
PARTS = Table(
    "PARTS",
    "a part of the steps' time in two runs",
    (
        Column(
            "part",
            "category",
            "computation, exposed communication, other kernels, exposed copy or idle",
        ),
        Column("before_ns", "float64", "time before, ns of a GPU per step"),
        Column("after_ns", "float64", "time after, ns of a GPU per step"),
        Column("difference_ns", "float64", "after less before, ns: the time that moved"),
        *resampling.COMPARED,
    ),
    (),  # in the order of `NAMES`
)
COMPARED_SAMPLES = Table(
    "COMPARED_SAMPLES",
    "a sampled metric of two logs",
    (
        Column("metric", "category", "canonical name with its unit as suffix"),
        Column("before", "float64", "time-weighted mean before, over the GPUs; NaN: not logged"),
        Column("after", "float64", "time-weighted mean after, over the GPUs; NaN: not logged"),
        Column("difference", "float64", "after less before"),
        Column("ratio", "float64", "after over before; NaN where before is 0"),
    ),
    ("metric",),
)
FIGURES = Table(
    "FIGURES",
    "a named figure of a run",
    (
        Column("id", "string", "stable name with the unit as suffix"),
        Column("label", "string", "name for people"),
        Column("value", "float64", "value in its unit"),
        Column(
            "unit",
            "category",
            "1 (a fraction), ns, bytes, bytes/s, FLOP, FLOP/s, FLOP/byte, count or 1/s",
        ),
        Column("definition", "string", "what it means"),
        Column("source", "string", "table and analysis it comes from"),
    ),
    (),  # in the order of the run's figures
)
COMPARED_FIGURES = Table(
    "COMPARED_FIGURES",
    "a figure of two runs",
    (
        Column("id", "string", "stable name with the unit as suffix"),
        Column("label", "string", "name for people"),
        Column("unit", "category", "unit of the values"),
        Column("before", "float64", "value before; NaN: that run lacks it"),
        Column("after", "float64", "value after; NaN: that run lacks it"),
        Column("difference", "float64", "after less before"),
        Column("ratio", "float64", "after over before; NaN where before is 0"),
        Column("ratio_low", "float64", "lower end of its interval; NaN: none is known"),
        Column("ratio_high", "float64", "upper end of its interval; NaN: none is known"),
        Column("better", "category", "which way is better: lower, higher, or missing for neither"),
        Column("verdict", "category", "one of `resampling.VERDICTS`"),
        Column("definition", "string", "what it means"),
        Column("source", "string", "table and analysis it comes from"),
    ),
    (),  # in the order of the figures before, then of the new ones
)
_KEYS = ["id", "label", "unit", "definition", "source"]
__all__ = [
    "COMPARED_FIGURES",
    "COMPARED_SAMPLES",
    "FEWEST",
    "FIGURES",
    "MATTERS",
    "NOISE",
    "PATHS",
    "TOLERANCE",
]
__all__ += [
    "families",
    "figures",
    "in_parts",
    "in_steps",
    "kernels",
    "launches",
    "ledger",
    "of_interval",
]
__all__ += ["parts", "paths", "samples", "steps", "units"]


def figures(
    before: pd.DataFrame,
    after: pd.DataFrame,
    *,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    least: Mapping[str, float] | None = None,
    tolerance: float = TOLERANCE,
    matters: float = MATTERS,
) -> pd.DataFrame:
    """Return the figures of two runs side by side, each with a verdict.

    Which way is better stands in `resampling.DIRECTIONS`; a figure that has no direction, such as a
    total that depends on how long was recorded, is "changed". Better or worse is only what has an
    interval; other figures that differ are "changed, not tested". A share can fall because work got
    faster: the step time decides.

    `before` and `after` are FIGURES; an id that is there twice raises ValueError. `intervals` has,
    by id, (low, high) of the ratio after / before of the figures that can have one: it decides;
    NaN, too few values, is "cannot tell". `least` has, by id, the absolute difference that matters,
    in the figure's unit: one with an interval must differ by more. `tolerance` is the relative
    difference up to which figures without an interval show no difference; fractions must differ by
    one point in a hundred as well. COMPARED_FIGURES has a row per figure that either run has.
    """
    for side, frame in (("before", before), ("after", after)):
        twice = FIGURES.check(frame)["id"][frame["id"].duplicated()]
        if len(twice):
            raise ValueError(f"{side}: the figure {twice.iloc[0]!r} is there more than once")
    old, new = (frame.set_index("id") for frame in (before, after))
    every = old.index.append(new.index.difference(old.index, sort=False))
    table = pd.DataFrame({"id": every}).assign(
        before=old["value"].reindex(every).to_numpy(np.float64)
    )
    table["after"] = new["value"].reindex(every).to_numpy(np.float64)
    for column in _KEYS[1:]:
        text = new[column].astype(object).reindex(every)
        table[column] = text.where(
            text.notna(), old[column].astype(object).reindex(every)
        ).to_numpy()
    ends = [(intervals or {}).get(name) for name in every]
    for i, column in enumerate(("ratio_low", "ratio_high")):
        table[column] = [end[i] if end else np.nan for end in ends]
    table["difference"] = table["after"] - table["before"]
    table["ratio"] = table["after"] / table["before"].where(table["before"] != 0)
    better = [resampling.direction(name) for name in every]
    smallest = [(least or {}).get(name, 0.0) for name in every]
    rows = zip(table["before"], table["after"], table["unit"], better, ends, smallest, strict=True)
    verdicts = [_verdict(*row, tolerance=tolerance, matters=matters) for row in rows]
    table["better"] = [way or None for way in better]
    return COMPARED_FIGURES.make(table.assign(verdict=verdicts))


def _verdict(
    was: float,
    now: float,
    unit: str,
    better: str,
    ends: tuple[float, float] | None,
    at_least: float,
    *,
    tolerance: float,
    matters: float,
) -> str:
    """Return the verdict on a figure: by the `ends` of its interval where it could have one."""
    if ends is None or np.isnan(was) or np.isnan(now):
        verdict = resampling.of_values(was, now, better=better, unit=unit, matters=tolerance)
        is_sided = verdict in (resampling.BETTER, resampling.WORSE)
        return resampling.UNTESTED if is_sided else verdict
    verdict = of_interval(*ends, better=better, matters=matters)
    return verdict if abs(now - was) >= at_least else LITTLE.get(verdict, UNSEEN)


def samples(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Return COMPARED_SAMPLES, the mean of each metric of two logs: weighted by time on each GPU, GPUs alike."""
    summaries = [readings.summary(SAMPLES.check(frame)) for frame in (before, after)]
    means = [summary["mean"].groupby(summary["metric"].astype(str)).mean() for summary in summaries]
    table = pd.concat(means, axis=1, keys=["before", "after"]).rename_axis("metric").reset_index()
    table["difference"] = table["after"] - table["before"]
    table["ratio"] = table["after"] / table["before"].where(table["before"] != 0)
    return COMPARED_SAMPLES.make(table)


def in_parts(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    steps: pd.DataFrame,
    *,
    others: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return what the GPUs did in each steady step, in parts that sum to the step's time.

    The parts are those of `timeline.breakdown` (of the same kernels, copies and others), between
    the start and the end of each step: the GPU may then still work on the step before, which evens
    out over the steps. `steps` are what `analysis.steps.detect` returned. STEP_PARTS has a row per
    steady step that a rank with a GPU takes: the mean over the GPUs of all ranks that take it.
    """
    steady = STEPS.check(steps)[steps["steady"]]
    frames = timeline.checked(kernels, copies, others)
    index, groups = devices(*frames)
    layers = list(accumulate(timeline.layers(frames, groups, None), merge))
    of_rank = dict(iter(steady.groupby("rank")))
    made = []
    for place, rank in enumerate(index["rank"]):
        if rank in of_rank:
            start, end = ends(of_rank[rank])
            reach = []
            for layer in layers:
                own = slice(*np.searchsorted(layer.group, [place, place + 1]))
                reach.append(covered(Intervals(*(column[own] for column in layer)), start, end))
            each = np.diff(np.stack([np.zeros_like(start), *reach, end - start]), axis=0)
            spent = {f"{name}_ns": part for name, part in zip(NAMES, each, strict=True)}
            made.append(pd.DataFrame({"step": of_rank[rank]["step"].to_numpy(), **spent}))
    if not made:
        return STEP_PARTS.empty()
    return STEP_PARTS.make(pd.concat(made).groupby("step", as_index=False).mean())


def parts(
    before: resampling.Frames,
    after: resampling.Frames,
    *,
    how: resampling.Resampling = resampling.PLAIN,
    matters: float = MATTERS,
) -> pd.DataFrame:
    """Return PARTS: the parts of the steps' time (`in_parts`) before and after, with an interval for the ratio.

    Less of any part is better: shares cannot tell that, for a share falls as well where another
    part grows. Means add up: the differences of all parts sum to that of the mean step of a GPU. A
    part must also move by the share `matters` of the step before; less is "too small to matter".
    `ratio` is NaN for what was 0 before. There is no row where a side has no steps.
    """
    old, new = (
        [one for one in resampling.listed(side) if len(STEP_PARTS.check(one))]
        for side in (before, after)
    )
    how = how._replace(statistic="mean").checked()
    if not old or not new:
        return PARTS.empty()
    step_ns = float(np.mean([frame.drop(columns="step").sum(axis=1).mean() for frame in old]))
    rows = []
    for name in NAMES:
        was, now = (
            [frame[f"{name}_ns"].to_numpy(np.float64) for frame in side] for side in (old, new)
        )
        row = resampling.compared(resampling.ratio(was, now, how), "_ns", matters)
        if abs(row["difference_ns"]) < matters * step_ns:
            row["verdict"] = LITTLE.get(row["verdict"], UNSEEN)
        rows += (
            [{"part": name.replace("_", " "), **row}] if row["before_ns"] or row["after_ns"] else []
        )
    return PARTS.make(pd.DataFrame(rows, columns=PARTS.column_names))


def steps(
    before: resampling.Frames,
    after: resampling.Frames,
    *,
    how: resampling.Resampling = resampling.PLAIN,
    matters: float = MATTERS,
) -> pd.DataFrame:
    """Return how the steady steps of two runs, or of two groups of repeats, compare.

    A step that several ranks take lasts as long as on the slowest of them. Steps that follow each
    other are alike: they are resampled in blocks; of three repeats or more the repeats are
    (`resampling`).

    `before`, `after`: What `analysis.steps.detect` returned; steps that are not steady are left
    out, and repeats without steady steps.

    COMPARED_STEPS: a row for the median, which is the verdict on the usual step, and one for the
    mean, on which the time of the whole run depends; of units of equal work (`units`) the mean
    alone, for a wait may lie in few of them; empty where a side has no steady steps. Times float64
    ns; `ratio` after / before, its interval NaN and the verdict "cannot tell" below six steps in a
    run and three runs.
    """
    old, new = series(before), series(after)
    how.checked()
    if not old or not new:
        return COMPARED_STEPS.empty()
    count = {"before_count": sum(map(len, old)), "after_count": sum(map(len, new))}
    is_work = all(
        frame["how"].eq(units.HOW).all()
        for frame in (*resampling.listed(before), *resampling.listed(after))
    )
    chosen = ("mean",) if is_work else resampling.STATISTICS
    ratios = {name: resampling.ratio(old, new, how._replace(statistic=name)) for name in chosen}
    rows = [
        {"statistic": name, **count, **resampling.compared(one, "_ns", matters)}
        for name, one in ratios.items()
    ]
    return COMPARED_STEPS.make(pd.DataFrame(rows))


def series(given: resampling.Frames) -> resampling.Runs:
    """Return the durations of the steady steps of each run's last phase in order, ns; of several ranks the slowest."""
    slowest = [
        last_phase(steady(frame)).groupby("step")["dur_ns"].max()
        for frame in resampling.listed(given)
    ]
    return [run.to_numpy(np.float64) for run in slowest if len(run)]


def ledger(
    runs: Mapping[str, resampling.Frames],
    *,
    utilisation: Mapping[str, float] | None = None,
    noise: float = 0.0,
) -> pd.DataFrame:
    """Return a series of runs, each with one more change: step time, and change against the run before and the first.

    `runs` has, by label, the steps of each run, or of its repeats, as in `steps`, in the order of
    the changes; `utilisation`, by label, that of the run, of any one meaning: ValueError outside
    0..1 or of no run.

    LEDGER has a row per run; step times are medians. Cumulative ratios compare with the first run
    directly: they are no products of single ones. A run without steady steps has NaN, and the next
    is compared with the last that has some.
    """
    used = utilisation or {}
    if strange := [label for label in used if label not in runs]:
        raise ValueError(f"utilisation: {strange} are not among {list(runs)}")
    if outside := {label: share for label, share in used.items() if not 0 <= share <= 1}:
        raise ValueError(f"utilisation: {outside} is not between 0 and 1")
    how = resampling.Resampling("median", noise=noise)
    rows: list[dict[str, Any]] = []
    earlier: list[resampling.Runs] = []
    for place, (label, frames) in enumerate(runs.items()):
        steady = series(frames)
        step = dict(
            zip(
                ("step_ns", "step_low_ns", "step_high_ns"),
                resampling.interval(steady, how),
                strict=True,
            )
        )
        first, last = (
            resampling.ratio(earlier[at], steady, how) if earlier and steady else _NONE
            for at in (0, -1)
        )
        change = resampling.compared(last, "_ns", MATTERS) if earlier and steady else {}
        row = {"place": place, "label": label, "count": sum(map(len, steady)), **step}
        row |= {"change_ns": change.get("difference_ns")}
        row |= {column.name: change.get(column.name) for column in resampling.COMPARED}
        row["utilisation_frac"] = used.get(label, math.nan)
        # Of the first run with itself, where no step was compared
        own = 1.0 if steady else math.nan
        whole, low, high = (
            own if math.isnan(first.ratio) else end for end in (first.ratio, first.low, first.high)
        )
        speedup = 1 / whole if whole else math.nan
        rows.append(
            row
            | {
                "cumulative_ratio": whole,
                "cumulative_low": low,
                "cumulative_high": high,
                "speedup": speedup,
            }
        )
        earlier += [steady] if steady else []
    return LEDGER.make(pd.DataFrame(rows, columns=LEDGER.column_names))
