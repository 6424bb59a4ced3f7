"""Two runs of any kind, or two groups of repeats, side by side: what they share, what differs, how sure that is.

What both runs recorded is compared, by the analyses of `perfkit.analysis.compare`; what only one has is refused. Runs
on other GPUs or of other profilers are compared all the same, with a caution that lowers the confidence.

Timelines are compared per step or per unit of equal work (`diagnosis.sides`). Where neither is known, times are shown
and the verdict is "cannot tell"; so it is where an interval allows both, better and worse by more than the tolerance.

With one or two runs a side, an interval allows `NOISE` for the difference between runs of one program, and the
confidence is medium at most. Of three repeats or more the noise is measured, and each figure has an interval.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pandas as pd

from perfkit.analysis import compare
from perfkit.analysis.compare.resampling import (
    CONFIDENCE,
    GONE,
    NEW,
    SEVERAL,
    STATISTICS,
    UNKNOWN,
    Resampling,
    enough,
    interval,
    ratio,
)
from perfkit.diagnosis.finding import Figure, Refusal
from perfkit.diagnosis.paths import metric
from perfkit.diagnosis.run_figures import figures
from perfkit.diagnosis.sides import (
    UNALIKE,
    Given,
    Side,
    common,
    lacking,
    launches_in_a_step,
    other_steps,
    side,
    timed,
    unshared,
)
from perfkit.errors import PerfkitError
from perfkit.format import percent, spoken_ends
from perfkit.readers import ordered

STEPS = Refusal(
    "Did the steps get faster?",
    "",
    "torch.profiler with prof.step(), NVTX ranges around the steps, or a timeline of at least "
    f"{compare.FEWEST} steps after warm-up",
)
RANGES_EACH, FEW_RANGES_EACH = (
    1.0,
    0.1,
)  # ranges for each kernel: so many slow the CPU down, so few do not (convention)
STEP, WORK = "step", "unit of equal work"
Ends = tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """What differs between two runs; frames of what they do not share are empty.

    `figures` is COMPARED_FIGURES, `steps` COMPARED_STEPS, `parts` PARTS, `families` FAMILIES; `kernels` is per step
    where both runs have steps; `launches`, `paths` (of the metric `paths_metric`) and `samples` as from
    `analysis.compare`. `cautions` lower the `confidence`: high, medium or low. `repeats`: the runs before and after.
    `other_steps` and `other_setup` are those of the cautions for which a difference is not the program's: the steps
    are not the same thing (verdicts on step times are then "cannot tell"), the GPUs or the profilers are others.
    `step_ends` has the interval of the step times after, by the figure's id, where there are enough steps.
    `unit` is what times are compared for: a step, or a unit of equal work. `other_work` says why there is neither.
    `noise`: what the intervals allow for the difference between runs of one program, 0 where repeats show it.
    """

    figures: pd.DataFrame
    steps: pd.DataFrame
    parts: pd.DataFrame
    families: pd.DataFrame
    kernels: pd.DataFrame
    launches: pd.DataFrame
    paths: pd.DataFrame
    paths_metric: str
    samples: pd.DataFrame
    confidence: str
    cautions: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    repeats: tuple[int, int] = (0, 0)
    other_steps: tuple[str, ...] = ()
    other_setup: tuple[str, ...] = ()
    step_ends: Mapping[str, Ends] = field(default_factory=dict)
    unit: str = STEP
    other_work: str = ""
    noise: float = 0.0

    @property
    def allowance(self) -> str:
        """What the intervals allow for, where too few runs show the noise between them; else empty."""
        if not self.noise:
            return ""
        before, after = self.repeats
        runs = "one run of each" if before == after == 1 else f"{before} runs before, {after} after"
        return (
            f"{runs}: the intervals allow {percent(self.noise)} for noise between runs of one program; "
            f"to measure the noise, record {SEVERAL} repeats of each"
        )


def compared(
    before: Given, after: Given, *, peaks: str = "", noise: float = compare.NOISE
) -> Comparison:
    """Return what differs between two runs of one kind, or two groups of repeats.

    `before`, `after`: a run, a selection of one, or a sequence of them: repeats of one program. `noise` is as in
    `analysis.compare.steps`. ValueError if there is no run, PerfkitError if the two share nothing that could be
    compared.
    """
    old, new = side("before", before), side("after", after)
    shared = common(old, new)
    if not shared:
        raise PerfkitError(
            f"before, after: {lacking(old, new)}. Record both with the same profiler."
        )
    how = Resampling("median", CONFIDENCE, noise=noise).checked()
    if "kernels" in shared or (old.is_of_host and new.is_of_host):
        old, new = timed(old, new)
    unlike, setup = tuple(other_steps(old, new)), tuple(other_setup(old, new))
    others, path_metric = _others(old, new, shared)
    tables = {**_judged(old, new, noise, is_told=not unlike), **others}
    of = WORK if old.is_in_units else STEP
    doubts = [*((text, "low") for text in (*setup, *unlike)), *cautions(old, new)]
    doubts += wide(tables["steps"], of)
    unanswered = list(untimed(old, new, tables["steps"]))
    allowed = noise if tables["steps"]["ratio_low"].notna().any() and _are_single(old, new) else 0.0
    every = side_by_side(old, new, tables, how, of=of, peaks=peaks)
    is_open = _allows_both(every) & ~every["id"].isin(part_ids(tables["parts"]))
    return Comparison(
        figures=_untold(every, is_open | (matching(every, OF_STEPS) & bool(unlike))),
        **tables,
        paths_metric=path_metric,
        confidence=sureness(doubts, unanswered, is_measured=not allowed),
        cautions=tuple(text for text, _ in doubts),
        refusals=(*unanswered, *unshared(old, new)),
        repeats=(len(old.views), len(new.views)),
        other_steps=unlike,
        other_setup=setup,
        unit=of,
        other_work=other_work(old, new) if "kernels" in shared else "",
        noise=allowed,
        step_ends=_ends_of_steps(new, how),
    )


def _judged(old: Side, new: Side, noise: float, *, is_told: bool) -> dict[str, pd.DataFrame]:
    """Return the tables of `_moved`; "cannot tell" where an interval allows both, of all where nothing `is_told`."""
    moved = _moved(old, new, noise)
    if not is_told:
        return {name: _untold(frame) for name, frame in moved.items()}
    open_ones = {
        name: _untold(moved[name], _allows_both(moved[name])) for name in ("steps", "families")
    }
    return moved | open_ones


def _ends_of_steps(new: Side, how: Resampling) -> dict[str, Ends]:
    """Return the interval of each step time after, by the figure's id, where there are enough steps."""
    runs = [] if new.is_in_units else compare.series(new.steps)
    if not enough(runs):
        return {}
    every = {name: interval(runs, how._replace(statistic=name)) for name in STATISTICS}
    return {f"step_{name}_ns": (low, high) for name, (_, low, high) in every.items()}


def nothing(refusal: Refusal) -> Comparison:
    """Return a comparison of nothing, and why."""
    empty = Side([]), Side([])
    return Comparison(
        figures=compare.COMPARED_FIGURES.empty(),
        **_moved(*empty, compare.NOISE),
        launches=compare.launches([], []),
        paths=compare.PATHS.empty(),
        paths_metric="",
        samples=compare.COMPARED_SAMPLES.empty(),
        confidence="low",
        refusals=(refusal,),
    )


def _moved(old: Side, new: Side, noise: float) -> dict[str, Any]:
    """Return steps, their parts, families and kernels side by side."""
    how = Resampling(noise=noise, are_pairs=old.are_pairs)
    return {
        "steps": compare.steps(old.steps, new.steps, how=how),
        "parts": compare.parts(old.parts, new.parts, how=how),
        "families": compare.families(old.kernels, new.kernels, how=how),
        "kernels": compare.kernels(old.kernels, new.kernels),
    }


def _others(old: Side, new: Side, shared: Sequence[str]) -> tuple[dict[str, pd.DataFrame], str]:
    """Return what is no timeline: counters, call paths (of the first repeats) and samples, and the paths' metric."""

    def rows(frame: pd.DataFrame, is_compared: object) -> pd.DataFrame:
        return frame if is_compared else frame.iloc[:0]

    views = old.views[0], new.views[0]
    named = {metric(view) for view in views} if "calltree" in shared else set()
    path_metric = named.pop() if len(named) == 1 else ""
    launches = (
        [rows(frame, "launches" in shared) for frame in side.table("launches")]
        for side in (old, new)
    )
    trees = (
        (rows(v.run.calltree, path_metric), rows(v.run.call_metrics, path_metric)) for v in views
    )
    return {
        "launches": compare.launches(*launches),
        "paths": compare.paths(*trees, metric=path_metric),
        "samples": compare.samples(*(rows(view.samples, "samples" in shared) for view in views)),
    }, path_metric


def _are_single(old: Side, new: Side) -> bool:
    """Say whether a side has too few repeats to show the noise between runs."""
    return min(len(old.views), len(new.views)) < SEVERAL


def other_work(old: Side, new: Side) -> str:
    """Say why two timelines cannot be compared for equal work; empty where they have steps or units of equal work."""
    if old.steps and new.steps:
        return ""
    share = compare.units.alike(old.table("all_kernels"), new.table("all_kernels"))
    if share < compare.units.ALIKE:
        return f"perfkit found no steps in both runs, and only {percent(share)} of their kernel time is the same work"
    return "perfkit found no steps in both runs, and the runs have too few kernels to compare equal work"


def untimed(old: Side, new: Side, steps: pd.DataFrame) -> Iterator[Refusal]:
    """Yield why the step times do not compare, where the sides have kernels; `steps` is COMPARED_STEPS."""
    if steps.empty and (old.kernels or new.kernels):
        why = "no steady steps were found in both runs: totals depend on how long each was recorded"
        yield replace(STEPS, reason=why)
    elif len(steps) and steps["ratio_low"].isna().all():
        yield replace(STEPS, reason=f"a run has fewer than {compare.FEWEST} steady steps")


def other_setup(old: Side, new: Side) -> Iterator[str]:
    """Yield in what the machines or the profilers differ, so that a difference need not be the program's."""
    gpus = _gpus(old), _gpus(new)
    if all(gpus) and gpus[0] != gpus[1]:
        yield f"different GPUs: {', '.join(gpus[0])} before, {', '.join(gpus[1])} after"
    counts = [
        {len(f[["rank", "gpu"]].drop_duplicates()) for f in side.table("all_kernels")}
        for side in (old, new)
    ]
    if counts[0] != counts[1]:
        yield "different numbers of GPUs with kernels"
    tools = [_timers(side) for side in (old, new)]
    if tools[0] != tools[1]:
        yield _other_tools(*tools)
    yield from _other_ranges(old, new)


def _other_ranges(old: Side, new: Side) -> Iterator[str]:
    """Yield that one side alone recorded ranges around about every launch, which makes the CPU slower."""
    counts = [sum(map(len, side.table("ranges"))) for side in (old, new)]
    kernels = [sum(map(len, side.table("all_kernels"))) for side in (old, new)]
    if not all(kernels):
        return
    each = [ranges / launches for ranges, launches in zip(counts, kernels, strict=True)]
    is_other = max(counts) * FEW_RANGES_EACH >= min(counts)
    if is_other and max(each) >= RANGES_EACH and min(each) < FEW_RANGES_EACH:
        yield f"different recordings: {counts[0]:,} ranges before and {counts[1]:,} after, which take time of the CPU"


def _timers(one: Side) -> set[str]:
    """Return the readers that the times of kernels are from, of a side without kernels all."""
    readers: set[str] = set()
    for view in one.views:
        every = [profile.reader for profile in view.run.profiles]
        holders = ordered(p.reader for p in view.run.profiles if "KERNELS" in p.loaders)
        readers |= set(holders[:1] or every)
    return readers


def _other_tools(old: set[str], new: set[str]) -> str:
    names = [", ".join(sorted(side)) for side in (old, new)]
    return f"different profilers, with different overhead: {names[0]} before, {names[1]} after"


def cautions(old: Side, new: Side) -> Iterator[tuple[str, str]]:
    """Yield what else makes the comparison doubtful, and how sure it leaves one: high, medium or low."""
    if old.is_on_gpu:
        yield (
            "the CPU runs ahead of the GPU: a step is what the GPU takes, from its first kernel to "
            "the first of the next step",
            "high",
        )
    if old.is_in_units:
        yield (
            "perfkit found no steps of one kind in both runs: it compares units of equal work",
            "medium",
        )
    if not (_gpus(old) and _gpus(new)) and not (old.is_of_host and new.is_of_host):
        yield "not every run names its GPU: the GPUs may differ", "medium"
    tools = [
        {profile.reader for view in side.views for profile in view.run.profiles}
        for side in (old, new)
    ]
    if tools[0] != tools[1] and _timers(old) == _timers(new):
        yield _other_tools(*tools), "low"
    if not (old.steps and new.steps):
        return
    launches = launches_in_a_step(old), launches_in_a_step(new)
    if max(launches) > UNALIKE * min(launches):
        yield (
            f"a step has {launches[0]:,.0f} kernels before and {launches[1]:,.0f} after: the work may differ",
            "medium",
        )


def wide(steps: pd.DataFrame, of: str) -> Iterator[tuple[str, str]]:
    """Yield that the interval of the usual step, the first of COMPARED_STEPS, allows both better and worse."""
    first = steps.head(1)
    for row in first[_allows_both(first)].to_dict("records"):
        ends = spoken_ends(row["ratio_low"], row["ratio_high"])
        yield (
            f"the {row['statistic']} {of} takes {ends} times as long: it can be faster or slower",
            "low",
        )


def _allows_both(table: pd.DataFrame) -> pd.Series:
    """Say whose interval allows both, better and worse by more than the tolerance."""
    most = 1 + compare.TOLERANCE
    return (table["ratio_low"] < 1 / most) & (table["ratio_high"] > most)


def _gpus(one: Side) -> list[str]:
    return sorted({str(name) for view in one.views for name in view.devices["name"] if str(name)})


OF_STEPS = (
    "step_*_ns",
    "equal_work_ns",
    "part_*_ns",
    "family_*_ns",
)  # kernels in both runs are matched launch by launch


def matching(figures: pd.DataFrame, patterns: Sequence[str]) -> pd.Series:
    """Tell which figures have an id of one of the patterns."""
    return (
        figures["id"]
        .map(lambda name: any(fnmatchcase(name, pattern) for pattern in patterns))
        .astype(bool)
    )


def _untold(frame: pd.DataFrame, rows: pd.Series | None = None) -> pd.DataFrame:
    """Return a table, or some of its rows, with "cannot tell" for each verdict, as it is where it has none."""
    if "verdict" not in frame or frame.empty:
        return frame
    verdict = frame["verdict"].astype("string")
    rows = pd.Series(True, frame.index) if rows is None else rows
    return frame.assign(
        verdict=verdict.mask(rows & ~verdict.isin([NEW, GONE]), UNKNOWN).astype("category")
    )


def sureness(
    cautions: Sequence[tuple[str, str]], refusals: Sequence[Refusal], *, is_measured: bool = True
) -> str:
    """Return how sure a comparison is: high, medium or low; never high where no repeats measure the noise."""
    levels = [level for _, level in cautions]
    if "low" in levels or levels.count("medium") > 1:
        return "low"
    return "medium" if levels or refusals or not is_measured else "high"


def side_by_side(
    old: Side,
    new: Side,
    tables: Mapping[str, pd.DataFrame],
    how: Resampling,
    *,
    of: str,
    peaks: str,
) -> pd.DataFrame:
    """Return COMPARED_FIGURES of both sides: means over repeats, with the figures of the comparison's own `tables`."""
    found = [[figures(view, peaks=peaks) for view in side.views] for side in (old, new)]
    means = [_mean(side) for side in found]
    intervals = _of_repeats(found[0], found[1], how)
    moving = {
        name: compare.MATTERS * float(tables["parts"]["before_ns"].sum())
        for name in part_ids(tables["parts"])
    }
    for figure, value, ends in _own(tables, of):
        for column, amount in zip(means, value, strict=True):
            if not np.isnan(amount):
                column[figure.id] = replace(figure, value=amount)
        if ends:
            intervals[figure.id] = ends
    before, after = (
        pd.DataFrame(list(side.values()), columns=compare.FIGURES.column_names) for side in means
    )
    frames = compare.FIGURES.make(before), compare.FIGURES.make(after)
    return compare.figures(*frames, intervals=intervals, least=moving)


def _mean(repeats: Sequence[Mapping[str, Figure]]) -> dict[str, Figure]:
    """Return the mean of each figure over the repeats that have it."""
    every = {key: figure for run in reversed(repeats) for key, figure in run.items()}
    order = dict.fromkeys(key for run in repeats for key in run)
    return {
        key: replace(
            every[key], value=float(np.mean([run[key].value for run in repeats if key in run]))
        )
        for key in order
    }


def _of_repeats(
    old: Sequence[Mapping[str, Figure]], new: Sequence[Mapping[str, Figure]], how: Resampling
) -> dict[str, Ends]:
    """Return the intervals of the figures that three repeats or more on both sides have."""
    if min(len(old), len(new)) < SEVERAL:
        return {}
    common = set.intersection(*({*run} for run in (*old, *new)))
    found = {}
    for key in sorted(common):
        sides = [[np.array([run[key].value]) for run in side] for side in (old, new)]
        if all(value[0] >= 0 for side in sides for value in side) and all(map(enough, sides)):
            ends = ratio(sides[0], sides[1], how)
            found[key] = (ends.low, ends.high)
    return found


def _own(tables: Mapping[str, pd.DataFrame], of: str) -> Iterator[tuple[Figure, Ends, Ends | None]]:
    """Yield the figures of the comparison itself: as before, their values, and the ends of the ratio's interval."""
    for row in tables["steps"].to_dict("records"):
        figure = _time_of_steps(str(row["statistic"]), of)
        yield figure, (row["before_ns"], row["after_ns"]), (row["ratio_low"], row["ratio_high"])
    for name, row in zip(
        part_ids(tables["parts"]), tables["parts"].to_dict("records"), strict=True
    ):
        definition = (
            "mean over the steady steps, time of a GPU between the start and the end of a step"
        )
        figure = Figure(
            name,
            f"{str(row['part']).capitalize()} per step",
            0.0,
            "ns",
            definition,
            "compare.parts",
        )
        ends = (row["ratio_low"], row["ratio_high"]) if row["before_ns"] else None
        yield figure, (row["before_ns"], row["after_ns"]), ends
    for row in tables["families"].to_dict("records") if len(tables["steps"]) else []:
        family = str(row["family"])
        definition = f"mean sum of the durations of {family} kernels in a steady step"
        figure = Figure(
            f"family_{family}_ns", f"{family} per step", 0.0, "ns", definition, "compare.families"
        )
        yield figure, (row["before_ns"], row["after_ns"]), (row["ratio_low"], row["ratio_high"])
    for name in ("kernels", "launches"):
        both = tables[name][(tables[name]["count_before"] > 0) & (tables[name]["count_after"] > 0)]
        if len(both):
            mean_ns = both["total_after_ns"] / both["count_after"]
            value = (
                float(both["total_before_ns"].sum()),
                float((mean_ns * both["count_before"]).sum()),
            )
            definition = (
                "kernels of one name and grid in both runs: each with its mean, as often as before"
            )
            figure = Figure(
                "matched_kernels_ns",
                "Kernels in both runs",
                0.0,
                "ns",
                definition,
                f"compare.{name}",
            )
            yield figure, value, None
            return


def _time_of_steps(statistic: str, of: str) -> Figure:
    """Return the figure, without its value, of a row of COMPARED_STEPS."""
    if of == WORK:
        definition = f"{statistic} time of the units of equal work, slow first ones left out"
        return Figure("equal_work_ns", "Unit of equal work", 0.0, "ns", definition, "compare.steps")
    definition = f"{statistic} of the steady steps"
    return Figure(
        f"step_{statistic}_ns",
        f"{statistic.capitalize()} step",
        0.0,
        "ns",
        definition,
        "compare.steps",
    )


def step_ids(found: Comparison) -> list[str]:
    """Return the ids of the figures of COMPARED_STEPS, in its order."""
    return [_time_of_steps(str(each), found.unit).id for each in found.steps["statistic"]]


def part_ids(parts: pd.DataFrame) -> list[str]:
    """Return the ids of the figures of PARTS, in its order."""
    return [f"part_{str(part).replace(' ', '_')}_ns" for part in parts["part"]]


def family_ids(families: pd.DataFrame) -> list[str]:
    """Return the ids of the figures of FAMILIES, in its order."""
    return [f"family_{family}_ns" for family in families["family"]]
