"""Which kernels and call paths of two runs are the same, which are new or gone, and where did their time move?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit import names
from perfkit.analysis.calltree.totals import (
    SEPARATOR,
    called,
    measured,
    nearest,
    of_kind,
    parents,
    text,
    within,
)
from perfkit.analysis.causes import started_by
from perfkit.analysis.compare import resampling, units
from perfkit.analysis.grouping import grouped, numbered, shared
from perfkit.analysis.intervals import Float, Int
from perfkit.analysis.kernels import KEYS
from perfkit.analysis.steps import STEPS
from perfkit.schema import Column, Table
from perfkit.tables import API_CALLS, KERNELS, LAUNCHES

FAMILIES = Table(
    "FAMILIES",
    "a family of kernels in two runs",
    (
        Column("family", "category", "kind of work"),
        Column(
            "before_ns",
            "float64",
            "kernel time before, ns per step of a rank, or per run without steps",
        ),
        Column(
            "after_ns",
            "float64",
            "kernel time after, ns per step of a rank, or per run without steps",
        ),
        Column("difference_ns", "float64", "after less before, ns: the time that moved"),
        *resampling.COMPARED,
    ),
    (),  # the largest difference first
)
ON_GPU = ("kernel sequence", units.HOW)  # steps that are spans on the GPU
SAME = "same"
STATUS = (resampling.CHANGED, SAME, resampling.NEW, resampling.GONE)
SHARED = ["name", "family"]  # what kernels of one key have in common, if anything
TEXTS = ["full_name", *SHARED]
SIDES = ("before", "after")
VALUES = ["count", "total_ns", "median_ns"]
TYPES = {
    "grid_blocks": "Int64",
    "block_threads": "Int64",
    **dict.fromkeys(VALUES, "float64"),
}
LONGEST = 40  # calls of a path that are told; of a longer one the innermost
PATHS = Table(
    "PATHS",
    "a call path in two profiles",
    (
        Column(
            "path",
            "string",
            "functions from the entry point down; of a long path the innermost ones",
        ),
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


def kernels(
    before: resampling.Frames,
    after: resampling.Frames,
    *,
    tolerance: float = resampling.TOLERANCE,
) -> pd.DataFrame:
    """Return the kernels of two runs side by side: launches, time and median, what changed, what is new or gone.

    KERNELS, or what `in_steps` returned: counts and totals are per step of a rank where kernels
    have a `step`, else per repeat: of runs recorded for different lengths only the medians compare.
    Kernels of one full name, with as many blocks and threads of a block, are one. `tolerance` is
    the relative difference of total or count up to which a kernel is "same".

    By falling size of the difference, ties by name. `full_name`, `name` and `family` category;
    `grid_blocks`, `block_threads` Int64; `count_before`, `count_after`, `total_before_ns`,
    `total_after_ns` float64, 0 where a run has no such kernel; `median_before_ns`,
    `median_after_ns` float64 over the launches, NaN there; `difference_ns` float64, of the totals;
    `ratio` and `median_ratio` float64, after over before, NaN for new kernels, the second for gone
    ones too; `status` category: changed, same, new or gone.
    """
    return _side_by_side([_totals(side) for side in _of_one_unit(before, after)], tolerance)


def launches(
    before: resampling.Frames,
    after: resampling.Frames,
    *,
    tolerance: float = resampling.TOLERANCE,
) -> pd.DataFrame:
    """Return the kernels of two reports of counters (LAUNCHES) side by side, as `kernels` does.

    Times are those measured under the counters; launches without a duration are left out.
    """
    sides = []
    for side in (before, after):
        timed = [
            LAUNCHES.check(frame)[frame["dur_ns"].notna()] for frame in resampling.listed(side)
        ]
        families = (
            frame["full_name"].map(names.family, na_action="ignore").astype(object)
            for frame in timed
        )
        told = zip(timed, families, strict=True)
        frames = [
            frame.assign(family=pd.Categorical(family.fillna("other"))) for frame, family in told
        ]
        sides.append(_totals(frames))
    return _side_by_side(sides, tolerance)


def _totals(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return count, total and median of each kernel of one side, per step or per repeat."""
    columns = [*KEYS["grid"], *SHARED]
    if not any(map(len, frames)):
        types = {column: pd.Series(dtype=TYPES.get(column, "object")) for column in columns}
        return pd.DataFrame(types | {value: pd.Series(dtype=TYPES[value]) for value in VALUES})
    units = sum(
        len(frame[["rank", "step"]].drop_duplicates()) if "step" in frame else 1 for frame in frames
    )
    whole = pd.concat([frame[[*columns, "dur_ns"]] for frame in frames], ignore_index=True)
    whole = whole.astype(dict.fromkeys(TEXTS, "category"))
    table, group = numbered(whole, KEYS["grid"])
    figures = grouped(whole["dur_ns"].to_numpy(), group, len(table))
    for column in SHARED:
        table[column] = shared(whole[column], group, len(table))
    table = table.astype(dict.fromkeys(TEXTS, object))
    return table.assign(
        count=figures["count"] / units,
        total_ns=figures["total"] / units,
        median_ns=figures["median"],
    )


def _side_by_side(sides: list[pd.DataFrame], tolerance: float) -> pd.DataFrame:
    """Return one row per kernel of either side."""
    keys = KEYS["grid"]
    named = [
        side.rename(columns={column: f"{column}_{which}" for column in [*VALUES, *SHARED]})
        for which, side in zip(SIDES, sides, strict=True)
    ]
    table = named[0].merge(named[1], on=keys, how="outer")
    for column in SHARED:
        table[column] = table[f"{column}_after"].where(
            table[f"{column}_after"].notna(), table[f"{column}_before"]
        )
    made = table[[*keys[:1], *SHARED, *keys[1:]]].assign(**_values(table))
    old, new = made["count_before"], made["count_after"]
    moved = (new - old).abs() > tolerance * old
    moved |= made["difference_ns"].abs() > tolerance * made["total_before_ns"]
    status = np.select(
        [old == 0, new == 0, moved],
        [resampling.NEW, resampling.GONE, resampling.CHANGED],
        default=SAME,
    )
    made["status"] = pd.Categorical(status, categories=STATUS)
    made = made.astype(dict.fromkeys(TEXTS, "category"))
    order = np.lexsort(
        [*(made[key].astype(str) for key in reversed(keys)), -made["difference_ns"].abs()]
    )
    return made.iloc[order].reset_index(drop=True)


def _values(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return counts, totals and medians of both sides, and what lies between them."""
    made = {}
    for value, missing in (("count", 0.0), ("total_ns", 0.0), ("median_ns", np.nan)):
        stem, unit = value.removesuffix("_ns"), "_ns" * value.endswith("_ns")
        for side in SIDES:
            made[f"{stem}_{side}{unit}"] = (
                table[f"{value}_{side}"].astype("float64").fillna(missing)
            )
    total, median = (
        (made[f"{stem}_before_ns"], made[f"{stem}_after_ns"]) for stem in ("total", "median")
    )
    made["difference_ns"] = total[1] - total[0]
    for name, (old, new) in (("ratio", total), ("median_ratio", median)):
        made[name] = new / old.where(old > 0)
    return made


def in_steps(
    kernels: pd.DataFrame, steps: pd.DataFrame, *, api_calls: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return the kernels of the steady steps, with the step they belong to.

    A kernel belongs to the step in which the call that launched it began, where the steps are spans
    on the host and the call was recorded: the GPU may run it later. Else it belongs to the step in
    which it began itself.

    `steps`: What `analysis.steps.detect` returned; may be empty.
    `api_calls`: API_CALLS of the same run; without it every kernel counts by its own start.

    The rows of KERNELS that belong to a steady step, with `step` int64, its number in the rank.
    """
    STEPS.check(steps)
    start = KERNELS.check(kernels)["start_ns"].to_numpy()
    if api_calls is not None and not steps["how"].isin(ON_GPU).all():
        call = started_by(kernels, API_CALLS.check(api_calls))
        launched = np.append(api_calls["start_ns"].to_numpy(), -1)[call]
        start = np.where((call >= 0) & (launched <= start), launched, start)
    place = np.full(len(kernels), -1, np.int64)
    rank = kernels["rank"].to_numpy()
    for one, spans in steps[steps["steady"]].groupby("rank"):
        mine = np.flatnonzero(rank == one)
        begin = spans["start_ns"].to_numpy()
        at = np.searchsorted(begin, start[mine], side="right") - 1
        inside = (at >= 0) & (start[mine] < (begin + spans["dur_ns"].to_numpy())[at])
        place[mine[inside]] = spans["step"].to_numpy()[at[inside]]
    rows = np.flatnonzero(place >= 0)
    chosen = kernels if len(rows) == len(kernels) else kernels.take(rows).reset_index(drop=True)
    return chosen.assign(step=place[rows])


def families(
    before: resampling.Frames,
    after: resampling.Frames,
    *,
    how: resampling.Resampling = resampling.PLAIN,
    matters: float = resampling.MATTERS,
) -> pd.DataFrame:
    """Return the kernel time of each family before and after, per step, with an interval for the ratio.

    The time of a family in a step is the sum of the durations of its kernels; kernels that run at
    once count in full. Means add up: the differences of all families sum to that of all kernel
    time.

    `before`, `after`: What `in_steps` returned, or KERNELS: without steps the time is that of the
    whole run, which says nothing where runs were recorded for different lengths, and has an
    interval from three repeats on.

    FAMILIES, by falling size of the difference, ties by name; `ratio` NaN for a new family;
    `verdict` also "new" and "gone".
    """
    how = how._replace(statistic="mean").checked()
    old, new = _of_one_unit(before, after)
    spent = [[_per_step(frame) for frame in frames] or [{}] for frames in (old, new)]
    rows = []
    for family in sorted(
        {name for side in spent for run in side for name, times in run.items() if times.any()}
    ):
        # Zeros where a run has none of the family.
        was, now = (
            [run.get(family, np.zeros(max(map(len, run.values()), default=1))) for run in s]
            for s in spent
        )
        row = resampling.compared(resampling.ratio(was, now, how), "_ns", matters)
        if not row["before_ns"] > 0 or not row["after_ns"] > 0:
            row["verdict"] = resampling.GONE if row["before_ns"] > 0 else resampling.NEW
        rows.append({"family": family, **row})
    table = FAMILIES.make(pd.DataFrame(rows, columns=FAMILIES.column_names))
    order = np.lexsort([table["family"].astype(str), -table["difference_ns"].abs()])
    return table.iloc[order].reset_index(drop=True)


def _of_one_unit(*sides: resampling.Frames) -> list[list[pd.DataFrame]]:
    """Return the frames of each side that have kernels; refuse to compare kernels per step with kernels per run."""
    filled = [
        [frame for frame in resampling.listed(side) if len(KERNELS.check(frame))] for side in sides
    ]
    if len({"step" in frame for frames in filled for frame in frames}) > 1:
        raise ValueError(
            "before, after: some have a column step and some have none. Pass all through in_steps."
        )
    return filled


def _per_step(kernels: pd.DataFrame) -> dict[str, Float]:
    """Return the time of each family in each step in order, ns, mean over the ranks; without steps, of the run."""
    family = kernels["family"].astype("category").cat
    count = len(family.categories)
    code = family.codes.to_numpy(np.int64)
    if "step" not in kernels:
        table = np.bincount(code, kernels["dur_ns"], count).astype(np.float64)[None, :]
    else:
        unit, number = numbered(kernels, ["step", "rank"])
        spent = np.bincount(number * count + code, kernels["dur_ns"], len(unit) * count).reshape(
            -1, count
        )
        step, place = np.unique(unit["step"], return_inverse=True)
        sums = np.zeros((len(step), count))
        np.add.at(sums, place, spent)
        table = sums / np.bincount(place)[:, None]
    return dict(zip(family.categories.astype(str), table.T, strict=True))


def paths(
    before: Profile, after: Profile, *, metric: str, tolerance: float = resampling.TOLERANCE
) -> pd.DataFrame:
    """Return a metric of each call path before and after: paths match by the names of their functions.

    Lines, loops and instructions belong to their function: they move with every edit. Template
    arguments and parameters are no part of a host function's name. Ranks and threads of one entry
    point are summed. Each profile is a pair of CALLTREE and CALL_METRICS; ValueError if it has
    values, but none of the metric, or the units differ.

    PATHS is by falling size of the difference, ties by path: paths with a value in either profile.
    The `difference` of all sums to the difference of the totals.
    """
    distinct = _Paths({}, [], [], [])
    sides = [_path_values(*profile, metric, distinct) for profile in (before, after)]
    units = {unit for _, unit in sides if unit}
    if len(units) > 1:
        raise ValueError(
            f"metric: {metric!r} is in {' and '.join(sorted(units))}. Compare profiles of one tool."
        )
    old, new = (values for values, _ in sides)
    table = pd.concat([old.add_suffix("before"), new.add_suffix("after")], axis=1).sort_index()
    absent = table["before"].isna(), table["after"].isna()
    made = table.fillna(0.0)
    made["difference"] = made["after"] - made["before"]
    made["ratio"] = made["after"] / made["before"].where(made["before"] > 0)
    moved = made["difference"].abs() > tolerance * made["before"]
    moved |= (made["inclusive_after"] - made["inclusive_before"]).abs() > tolerance * made[
        "inclusive_before"
    ]
    made["status"] = np.select(
        [*absent, moved], [resampling.NEW, resampling.GONE, resampling.CHANGED], default=SAME
    )
    made["path"] = [distinct.described(path) for path in made.index]
    made["name"], made["depth"] = (
        [column[path] for path in made.index] for column in (distinct.name, distinct.depth)
    )
    differences = PATHS.make(made.assign(unit=next(iter(units), "")))
    order = np.lexsort(
        [
            pd.factorize(differences["path"], sort=True)[0],
            -differences["difference"].abs().to_numpy(),
        ]
    )
    return differences.iloc[order].reset_index(drop=True)


def _path_values(
    calltree: pd.DataFrame, call_metrics: pd.DataFrame, metric: str, distinct: _Paths
) -> tuple[pd.DataFrame, str]:
    """Return the values of each path of one profile by its number, and their unit."""
    values = measured(calltree, call_metrics, metric)
    parent = parents(calltree)
    owner = within(calltree, parent)
    number = _path_numbers(calltree, parent, owner, distinct)
    own = np.bincount(number[owner[values.row]], values.exclusive, len(distinct.above))
    whole = owner[values.row] == values.row
    inclusive = np.bincount(number[values.row[whole]], values.inclusive[whole], len(distinct.above))
    used = np.flatnonzero((own != 0) | (inclusive != 0))
    return pd.DataFrame({"": own[used], "inclusive_": inclusive[used]}, index=used), values.unit


def _path_numbers(calltree: pd.DataFrame, parent: Int, owner: Int, distinct: _Paths) -> Int:
    """Return the number of the path to each function, entry point and GPU operation; -1 for all others."""
    rows = np.arange(len(calltree))
    own = rows[owner == rows]
    on_gpu = nearest(parent, of_kind(calltree, "gpu_operation")) >= 0
    full = text(calltree["name"], rows).fillna("unknown")
    # Host functions without template arguments, kernels by their short name, which tells work
    # apart.
    host, device = (
        {n: call(n) for n in full[of].unique()}
        for call, of in ((called, ~on_gpu), (names.short, on_gpu))
    )
    shown = np.where(on_gpu, full.map(device), full.map(host))
    number = np.full(len(calltree), -1, np.int64)
    above = np.where(parent >= 0, owner[parent], -1)
    for row in own[np.argsort(calltree["depth"].to_numpy()[own], kind="stable")].tolist():
        number[row] = distinct.of(
            int(number[above[row]]) if above[row] >= 0 else -1, str(shown[row])
        )
    return number
