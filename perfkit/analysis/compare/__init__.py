"""Is the run after a change faster than the one before, where did the time move, and is the difference one?

Conventions
-----------
`before` and `after` are one table of each run, or a sequence of tables, one per repeat; they may be empty; another
table raises SchemaError. A difference is after less before, a ratio after over before: below 1 is faster. Kernel times
are per step wherever kernels carry a step (`in_steps`): runs are recorded for different lengths; ValueError if only one
side has steps.

A ratio of step or family times has a confidence interval, resampled as `resampling` says, with `confidence` (above 0,
below 1), the number of `resamples` (at least 100) and a `seed`: the same seed gives the same interval; ValueError if
one cannot be used. The interval is NaN where there are too few values. A verdict needs the whole interval to lie
further from 1 than what `matters`, 1 % by default, since runs of one program differ by as much, which no single one
shows. Values without an interval differ from 5 % (`tolerance`) on, and are then changed, not better or worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis import monitoring
from perfkit.analysis.calltree.totals import SEPARATOR, called, measured, nearest, of_kind, parents, text, within
from perfkit.analysis.compare.kernel_pairs import SAME, families, in_steps, kernels, launches
from perfkit.analysis.compare.resampling import (
    BETTER,
    CHANGED,
    FEWEST,
    GONE,
    MATTERS,
    NEW,
    TOLERANCE,
    UNSEEN,
    UNTESTED,
    WORSE,
    direction,
    of_interval,
    of_values,
)
from perfkit.analysis.compare.step_times import in_parts, ledger, parts, steps
from perfkit.analysis.intervals import Int
from perfkit.names.shortening import short
from perfkit.schema import Column, Table
from perfkit.tables import SAMPLES

LONGEST = 40  # calls of a path that are told; of a longer one the innermost
PATHS = Table(
    "PATHS",
    "a call path in two profiles",
    (
        Column("path", "string", "functions from the entry point down; of a long path the innermost ones"),
        Column("name", "string", "innermost function or GPU operation"),
        Column("depth", "int64", "calls from the entry point"),
        Column("unit", "category", "unit of the values"),
        Column("before", "float64", "value of the function itself before, 0 where the path is new"),
        Column("after", "float64", "value of the function itself after, 0 where the path is gone"),
        Column("difference", "float64", "after less before: they add up over all paths"),
        Column("ratio", "float64", "after over before; NaN where before is 0"),
        Column("inclusive_before", "float64", "with everything called from it, before"),
        Column("inclusive_after", "float64", "with everything called from it, after"),
        Column("status", "category", "changed, same, new or gone"),
    ),
    (),  # the largest difference first
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
Profile = tuple[pd.DataFrame, pd.DataFrame]


class _Paths(NamedTuple):
    """The distinct paths of both profiles: the path above each, its innermost name, and its number of calls."""

    number: dict[tuple[int, str], int]
    above: list[int]
    name: list[str]
    depth: list[int]

    def of(self, above: int, name: str) -> int:
        """Return the number of the path that leads from the path `above` to `name`."""
        key = above, name
        if key not in self.number:
            self.number[key] = len(self.above)
            self.above.append(above)
            self.name.append(name)
            self.depth.append(self.depth[above] + 1 if above >= 0 else 0)
        return self.number[key]

    def described(self, path: int) -> str:
        """Return the functions from the entry point down, of a long path the innermost ones."""
        steps: list[str] = []
        while path >= 0 and len(steps) < LONGEST:
            steps.append(self.name[path])
            path = self.above[path]
        return SEPARATOR.join([*["…"] * (path >= 0), *reversed(steps)])


FIGURES = Table(
    "FIGURES",
    "a named figure of a run",
    (
        Column("id", "string", "stable name with the unit as suffix"),
        Column("label", "string", "name for people"),
        Column("value", "float64", "value in its unit"),
        Column("unit", "category", "1 (a fraction), ns, bytes, bytes/s, FLOP, FLOP/s, FLOP/byte, count or 1/s"),
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
        Column(
            "verdict", "category", "better, worse, no difference seen, cannot tell, changed (not tested), new or gone"
        ),
        Column("definition", "string", "what it means"),
        Column("source", "string", "table and analysis it comes from"),
    ),
    (),  # in the order of the figures before, then of those that are new
)
_KEYS = ["id", "label", "unit", "definition", "source"]
__all__ = [
    "COMPARED_FIGURES",
    "COMPARED_SAMPLES",
    "FEWEST",
    "FIGURES",
    "MATTERS",
    "PATHS",
    "TOLERANCE",
    "families",
    "figures",
    "in_parts",
    "in_steps",
    "kernels",
    "launches",
    "ledger",
    "of_interval",
    "parts",
    "paths",
    "samples",
    "steps",
]


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

    Which way is better stands in `resampling.DIRECTIONS`; a figure that has no direction, such as a total that depends
    on how long was recorded, is "changed". Better or worse is only what has an interval; other figures that differ are
    "changed, not tested". A share can fall because work got faster: the step time decides.

    Parameters
    ----------
    before, after
        FIGURES; an id that is there twice raises ValueError.
    intervals
        Id -> (low, high) of the ratio after / before, of the figures that can have one: it decides; NaN, too few
        values, is "cannot tell".
    least
        Id -> absolute difference that matters, in the figure's unit: one with an interval must differ by more.
    tolerance
        Relative difference up to which figures without an interval show no difference; fractions must differ by one
        point in a hundred as well.

    Returns
    -------
    pandas.DataFrame
        COMPARED_FIGURES, a row per figure that either run has, in their order.
    """
    for side, frame in (("before", before), ("after", after)):
        twice = FIGURES.check(frame)["id"][frame["id"].duplicated()]
        if len(twice):
            raise ValueError(f"{side}: the figure {twice.iloc[0]!r} is there more than once")
    old, new = (frame.set_index("id") for frame in (before, after))
    every = old.index.append(new.index.difference(old.index, sort=False))
    table = pd.DataFrame({"id": every}).assign(before=old["value"].reindex(every).to_numpy(np.float64))
    table["after"] = new["value"].reindex(every).to_numpy(np.float64)
    for column in _KEYS[1:]:
        spoken = new[column].astype(object).reindex(every)
        table[column] = spoken.where(spoken.notna(), old[column].astype(object).reindex(every)).to_numpy()
    ends = [(intervals or {}).get(name) for name in every]
    for i, column in enumerate(("ratio_low", "ratio_high")):
        table[column] = [end[i] if end else np.nan for end in ends]
    table["difference"] = table["after"] - table["before"]
    table["ratio"] = table["after"] / table["before"].where(table["before"] != 0)
    better = [direction(name) for name in every]
    table["better"] = [way or None for way in better]
    smallest = [(least or {}).get(name, 0.0) for name in every]
    rows = zip(table["before"], table["after"], table["unit"], better, ends, smallest, strict=True)
    verdicts = []
    for was, now, unit, way, end, at_least in rows:  # by the interval, of figures that could have one
        if end is None or np.isnan(was) or np.isnan(now):
            verdict = of_values(was, now, better=way, unit=unit, matters=tolerance)
            verdicts.append(UNTESTED if verdict in (BETTER, WORSE) else verdict)
        else:
            seen = abs(now - was) >= at_least
            verdicts.append(of_interval(*end, better=way, matters=matters) if seen else UNSEEN)
    return COMPARED_FIGURES.make(table.assign(verdict=verdicts))


def paths(before: Profile, after: Profile, *, metric: str, tolerance: float = TOLERANCE) -> pd.DataFrame:
    """Return a metric of each call path before and after: paths match by the names of their functions.

    Lines, loops and instructions belong to their function: they move with every edit. Template arguments and parameters
    are no part of a host function's name. Ranks and threads of one entry point are summed.

    Parameters
    ----------
    before, after
        CALLTREE and CALL_METRICS of one profile, each as a pair.
    metric
        A metric of both; ValueError if a profile has values, but none of it, or the units differ.

    Returns
    -------
    pandas.DataFrame
        PATHS, by falling size of the difference, ties by path: paths with a value in either profile. The `difference`
        of all sums to the difference of the totals.
    """
    known = _Paths({}, [], [], [])
    sides = [_values(*profile, metric, known) for profile in (before, after)]
    units = {unit for _, unit in sides if unit}
    if len(units) > 1:
        raise ValueError(f"metric: {metric!r} is in {' and '.join(sorted(units))}. Compare profiles of one tool.")
    old, new = (values for values, _ in sides)
    table = pd.concat([old.add_suffix("before"), new.add_suffix("after")], axis=1).sort_index()
    absent = table["before"].isna(), table["after"].isna()
    made = table.fillna(0.0)
    made["difference"] = made["after"] - made["before"]
    made["ratio"] = made["after"] / made["before"].where(made["before"] > 0)
    moved = made["difference"].abs() > tolerance * made["before"]
    moved |= (made["inclusive_after"] - made["inclusive_before"]).abs() > tolerance * made["inclusive_before"]
    made["status"] = np.select([*absent, moved], [NEW, GONE, CHANGED], default=SAME)
    made["path"] = [known.described(path) for path in made.index]
    made["name"], made["depth"] = ([column[path] for path in made.index] for column in (known.name, known.depth))
    found = PATHS.make(made.assign(unit=next(iter(units), "")))
    order = np.lexsort([pd.factorize(found["path"], sort=True)[0], -found["difference"].abs().to_numpy()])
    return found.iloc[order].reset_index(drop=True)


def _values(calltree: pd.DataFrame, call_metrics: pd.DataFrame, metric: str, known: _Paths) -> tuple[pd.DataFrame, str]:
    """Return the values of each path of one profile by its number, and their unit."""
    found = measured(calltree, call_metrics, metric)
    parent = parents(calltree)
    owner = within(calltree, parent)
    number = _numbered(calltree, parent, owner, known)
    own = np.bincount(number[owner[found.row]], found.exclusive, len(known.above))
    whole = owner[found.row] == found.row
    inclusive = np.bincount(number[found.row[whole]], found.inclusive[whole], len(known.above))
    used = np.flatnonzero((own != 0) | (inclusive != 0))
    return pd.DataFrame({"": own[used], "inclusive_": inclusive[used]}, index=used), found.unit


def _numbered(calltree: pd.DataFrame, parent: Int, owner: Int, known: _Paths) -> Int:
    """Return the number of the path to each function, entry point and GPU operation; -1 for all others."""
    rows = np.arange(len(calltree))
    own = rows[owner == rows]
    on_gpu = nearest(parent, of_kind(calltree, "gpu_operation")) >= 0
    names = text(calltree["name"], rows).fillna("unknown")
    # Host functions without template arguments, kernels by their short name, which tells work apart.
    host, device = ({n: call(n) for n in names[of].unique()} for call, of in ((called, ~on_gpu), (short, on_gpu)))
    spoken = np.where(on_gpu, names.map(device), names.map(host))
    number = np.full(len(calltree), -1, np.int64)
    above = np.where(parent >= 0, owner[parent], -1)
    for row in own[np.argsort(calltree["depth"].to_numpy()[own], kind="stable")].tolist():
        number[row] = known.of(int(number[above[row]]) if above[row] >= 0 else -1, str(spoken[row]))
    return number


def samples(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """Return COMPARED_SAMPLES, the mean of each metric of two logs: weighted by time on each GPU, GPUs alike."""
    summaries = [monitoring.summary(SAMPLES.check(frame)) for frame in (before, after)]
    means = [summary["mean"].groupby(summary["metric"].astype(str)).mean() for summary in summaries]
    table = pd.concat(means, axis=1, keys=["before", "after"]).rename_axis("metric").reset_index()
    table["difference"] = table["after"] - table["before"]
    table["ratio"] = table["after"] / table["before"].where(table["before"] != 0)
    return COMPARED_SAMPLES.make(table)
