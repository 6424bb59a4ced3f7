"""Is a run worse than its baseline, or over its budget? The verdict for continuous integration.

A figure fails if it is surely worse, and by more than the tolerance, 5 % by default: its value is beyond the tolerance,
and its whole interval lies beyond `MATTERS`. It passes if its whole interval lies within the tolerance. Otherwise the
outcome is an error: perfkit cannot tell. The same holds for all figures of two runs that are unlike: on other GPUs, by
other profilers, or without the same steps or the same work (`diagnosis.comparison`). A recording passes against itself.

Judged are, without a budget, the wall time of a step or of a unit of equal work, and the time of the families of
kernels in it; a family fails only if it adds more than `MATTERS` to the wall time, and the wall time did not surely get
shorter all the same. Where there is no timeline, the times of call paths, of the kernels in both runs and the shares of
a log are judged by their values.

A doubt of either recording (`diagnosis.recording`) that touches more of its GPU time, or of its launches, than the
tolerance makes every figure of the timeline unknown.

A budget adds limits of single figures: the value of the run itself is judged, of step times their interval. Exit
status: 1 if a figure surely failed, else 2 if perfkit cannot tell of one, else 0.

A budget is a TOML file::

    tolerance = 0.05  # relative, for every figure
    noise = 0.02  # relative, by which two runs of one program differ on this machine
    figures.step_median_ns = { tolerance = 0.02, max = 160e6 }  # in the unit of the figure
    figures.device_busy_frac = { min = 0.6 }
    figures.family_copy_ns = { ignore = true }
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd

from perfkit.analysis.causes import PARTS
from perfkit.analysis.compare.resampling import (
    BETTER,
    MATTERS,
    NOISE,
    SEVERAL,
    TOLERANCE,
    WORSE,
    of_interval,
    of_values,
)
from perfkit.diagnosis import recording
from perfkit.diagnosis.comparison import (
    OF_STEPS,
    STEP,
    Comparison,
    compared,
    family_ids,
    matching,
    step_ids,
)
from perfkit.diagnosis.doubt import Doubt
from perfkit.diagnosis.finding import spoken
from perfkit.diagnosis.sides import Given, side
from perfkit.diagnosis.sources import TIMELINE, source
from perfkit.errors import PerfkitError, ReadError
from perfkit.format import number, percent, printable, spoken_ends
from perfkit.settings import finite, toml

KEYS = {
    "tolerance": "a number of at least 0",
    "max": "a number",
    "min": "a number",
    "ignore": "true or false",
}


@dataclass(frozen=True)
class Budget:
    """Limits: a tolerance for all figures, the noise between runs, and limits of single figures, by id."""

    path: str = ""
    tolerance: float = TOLERANCE
    noise: float = NOISE
    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


PASS, FAIL, ERROR = "pass", "fail", "error"
BASELINE, BUDGET = "baseline", "budget"  # what a figure is judged against
EXIT = {PASS: 0, FAIL: 1, ERROR: 2}
ORDER = (FAIL, ERROR, PASS)  # a sure failure decides, then what is unknown


@dataclass(frozen=True)
class Verdict:
    """A figure that was judged: its values, its limit in words, the outcome (pass, fail or error) and why.

    `against` says what the limit is from: baseline or budget.
    """

    id: str
    label: str
    unit: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    limit: str
    outcome: str
    reason: str
    against: str = BASELINE

    @property
    def values(self) -> str:
        """The values before and after as people read them."""
        return f"{spoken(self.unit, self.before)} -> {spoken(self.unit, self.after)}"


@dataclass(frozen=True)
class Checked:
    """All verdicts, the failed ones first, and what makes the comparison doubtful."""

    verdicts: tuple[Verdict, ...]
    cautions: tuple[str, ...] = ()
    confidence: str = "high"

    @property
    def outcome(self) -> str:
        """The outcome of all: fail if one surely failed, else error if one is unknown, else pass."""
        return min((verdict.outcome for verdict in self.verdicts), key=ORDER.index, default=ERROR)

    @property
    def exit_code(self) -> int:
        """1 if one is surely worse, else 2 if one could not be told, else 0."""
        return EXIT[self.outcome]


# Judged unless the budget names others: times that a change is meant to shorten; shares of a log where it is all there
# is. A share of a timeline is not: it can fall because the work got faster.
TIMES = (
    "step_*_ns",
    "equal_work_ns",
    "family_*_ns",
    "matched_kernels_ns",
    "paths_wall_ns",
    "paths_host_ns",
    "paths_operation_ns",
)
OF_CAUSES = {
    f"idle_{part.removesuffix('_ns')}_frac" for part in (*PARTS, "unattributed", "edge")
}  # figures of idle time by its causes
WITHOUT_INTERVAL = (*TIMES, "log_*_frac")
RATIOS = ("ratio", "ratio_low", "ratio_high")
SMALL_FRAC = 0.01  # of all kernel time: a smaller family is not judged unless the budget names it


def check(
    run: Given,
    baseline: Given | None = None,
    budget: str | Path | Budget | None = None,
    *,
    peaks: str = "",
) -> Checked:
    """Return the verdicts on a run: against its baseline, and against the limits of a budget.

    `run`, `baseline` and `peaks` are as in `diagnosis.comparison.compared`; without a baseline
    only `max` and `min` of the budget are judged. `budget`: a TOML file, see the module, or what `load_budget`
    returned; none for 5 % on everything. PerfkitError if baseline and budget are both missing, the runs share nothing,
    or nothing of them can be judged; ReadError if the budget cannot be used.
    """
    limits = budget if isinstance(budget, Budget) else load_budget(budget) if budget else Budget()
    if baseline is None and not limits.figures:
        raise PerfkitError(
            "check: there is neither a baseline nor a budget with limits. Give --baseline or --budget."
        )
    found = compared(
        run if baseline is None else baseline,
        run,
        peaks=peaks,
        noise=limits.noise,
    )
    verdicts: list[Verdict] = []
    if baseline is not None:
        verdicts += _against_baseline(found, run, baseline, limits)
    verdicts += _limited(found, limits, _doubts(run), baseline is not None)
    if not verdicts:
        raise PerfkitError(
            "check: nothing that both runs recorded can be judged. Record steps (NVTX ranges or prof.step()), or name "
            "the figures with max or min in a budget."
        )
    ordered = sorted(verdicts, key=lambda verdict: ORDER.index(verdict.outcome))
    sure = "low" if any(verdict.outcome == ERROR for verdict in verdicts) else found.confidence
    cautions = [*found.cautions, found.allowance] if baseline is not None else []
    return Checked(tuple(ordered), tuple(filter(None, cautions)), sure)


def _against_baseline(
    found: Comparison, run: Given, baseline: Given, limits: Budget
) -> list[Verdict]:
    """Return the verdicts on the figures that are judged against the baseline."""
    is_same = _paths(run) == _paths(baseline)
    unlike = [*found.other_steps, *found.other_setup]
    unlike += [found.other_work] if found.other_work and not is_same else []
    doubts = (*_doubts(baseline), *_doubts(run))
    wall_ns = float(found.steps["before_ns"].max())
    families = family_ids(found.families)
    parts = {*families, "matched_kernels_ns"} if len(found.steps) else set()
    rows = _chosen(found, limits)
    walls = [row for row in rows if row["id"] in step_ids(found)]
    verdicts = []
    for row in rows:
        is_family = row["id"] in families
        added_to_ns = wall_ns if is_family else math.nan
        one = _on(row, limits, unlike, doubts, wall_ns=added_to_ns, is_same=is_same)
        if row["id"] in parts and "tolerance" not in limits.figures.get(row["id"], {}):
            one = _of_faster(one, walls)
        # Units of equal work do not hold equal work of each family: only a sure failure counts.
        if found.unit == STEP or one.outcome == FAIL or not is_family:
            verdicts.append(one)
    known = set(found.figures["id"])
    for name, own in limits.figures.items():
        if "tolerance" in own and name not in known:
            verdicts.append(missing(name, f"tolerance {percent(float(own['tolerance']))}"))
    return verdicts


def _of_faster(one: Verdict, walls: Sequence[Mapping[str, Any]]) -> Verdict:
    """Return the verdict on a part of the wall time: it passes where the wall time surely got shorter all the same."""
    is_bad = one.outcome == FAIL or (one.outcome == ERROR and not math.isnan(one.low))
    if not is_bad or not walls or not all(map(_is_shorter, walls)):
        return one
    ratio = max(row["ratio"] for row in walls)
    why = f"longer, or perhaps, but the wall time got shorter: {number(ratio)} times the baseline"
    return replace(one, outcome=PASS, reason=why)


def _is_shorter(row: Mapping[str, Any]) -> bool:
    """Say whether a wall time is surely shorter: its whole interval, or its value where it has none."""
    if math.isnan(row["ratio_low"]):
        return bool(row["ratio"] < 1 / (1 + TOLERANCE))
    return of_interval(row["ratio_low"], row["ratio_high"], better="lower") == BETTER


def _paths(given: Given) -> set[Path]:
    """Return what the profiles of a side were read from."""
    return {
        profile.path.resolve() for view in side("run", given).views for profile in view.run.profiles
    }


def _doubts(given: Given) -> tuple[Doubt, ...]:
    """Return the doubts of a side that touch times of its GPUs, or the causes of idle time."""
    every = (doubt for view in side("run", given).views for doubt in recording.doubts(view))
    return tuple(doubt for doubt in every if doubt.lowers_confidence)


def _doubted(row: Mapping[str, Any], doubts: Sequence[Doubt], tolerance: float) -> str:
    """Return the doubt that touches more of a figure than the tolerance, in words; empty if none does.

    Doubts are of times of the GPU: figures of call paths and of logs do not rest on these. Lost calls
    touch the causes of idle time alone.
    """
    if TIMELINE.isdisjoint(source(row["source"]).tables):
        return ""
    is_of_cause = row["id"] in OF_CAUSES
    touched = (doubt for doubt in doubts if is_of_cause or doubt.is_about_times)
    touching = (doubt.seen for doubt in touched if doubt.touched_frac > tolerance)
    return next((f"cannot tell: {seen}" for seen in touching), "")


def _on(
    row: Mapping[str, Any],
    budget: Budget,
    unlike: Sequence[str],
    doubts: Sequence[Doubt],
    *,
    wall_ns: float,
    is_same: bool,
) -> Verdict:
    """Return the verdict on one figure against the baseline.

    `unlike` says why both runs are, if they are; `wall_ns` is the time of a step or unit before, of which the figure
    is a part; NaN without.
    """
    tolerance = float(budget.figures.get(row["id"], {}).get("tolerance", budget.tolerance))
    better = row["better"]
    if not isinstance(better, str):
        reason = f"perfkit does not know if more or less of {row['id']} is better: set max or min"
        return judged(row, f"tolerance {percent(tolerance)}", ERROR, reason)
    if better == "lower":
        allowed = f"at most {number(1 + tolerance)} times the baseline"
    else:
        allowed = f"at least {number(1 / (1 + tolerance))} times the baseline"
    if math.isnan(row["before"]) or math.isnan(row["after"]):
        which = "baseline" if math.isnan(row["before"]) else "run"
        return judged(row, allowed, ERROR, f"the {which} lacks this figure")
    if unlike:
        return judged(
            row, allowed, ERROR, f"cannot tell, the runs do not compare: {'; '.join(unlike)}"
        )
    if is_same and row["before"] == row["after"]:
        return judged(row, allowed, PASS, "the same recording")
    why = _doubted(row, doubts, tolerance)
    if why:
        return judged(row, allowed, ERROR, why)
    if better == "lower" and row["after"] == 0:
        return judged(row, allowed, PASS, "gone")
    if _is_little(row, wall_ns):
        return judged(row, allowed, PASS, f"adds at most {percent(MATTERS)} to the wall time")
    return judged(row, allowed, *_outcome(row, better, tolerance))


def _is_little(row: Mapping[str, Any], wall_ns: float) -> bool:
    """Say whether a part, even at the upper end of its interval, hardly makes the wall time longer; no if it is NaN."""
    most = row["ratio_high"] if row["ratio_high"] == row["ratio_high"] else row["ratio"]
    return bool((most - 1) * row["before"] <= MATTERS * wall_ns)


def _chosen(found: Comparison, budget: Budget) -> list[dict[str, Any]]:
    """Return the figures to judge: the times that have an interval, else those without, and what the budget names."""
    table = found.figures
    named = table["id"].map(lambda name: "tolerance" in budget.figures.get(name, {})).astype(bool)
    ignored = (
        table["id"].map(lambda name: bool(budget.figures.get(name, {}).get("ignore"))).astype(bool)
    )
    of_family = table["id"].isin(family_ids(found.families))
    is_small = of_family & _is_small(table, of_family)
    certain = table["ratio_low"].notna() & matching(table, TIMES) & ~is_small
    if not certain.any():
        certain = (
            table[["before", "after"]].notna().all(axis=1)
            & matching(table, WITHOUT_INTERVAL)
            & ~is_small
        )
    return _records(table[((certain & table["better"].notna()) | named) & ~ignored])


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows of COMPARED_FIGURES as dictionaries, NaN for what is missing."""
    return [
        {str(key): value for key, value in row.items()}
        for row in rows.astype(object).to_dict("records")
    ]


def _is_small(table: pd.DataFrame, of_family: pd.Series) -> pd.Series:
    """Say which figures are times that hardly count beside those of all families of kernels."""
    most: pd.Series = table[["before", "after"]].max(axis=1)
    is_small: pd.Series = most < SMALL_FRAC * table.loc[of_family, "before"].sum()
    return is_small


def _outcome(row: Mapping[str, Any], better: str, tolerance: float) -> tuple[str, str]:
    """Return whether a figure passes or fails, or that its interval allows both, and why."""
    low, high = row["ratio_low"], row["ratio_high"]
    worse = f"worse by more than {percent(tolerance)}"
    if math.isnan(low):
        change = of_values(
            row["before"], row["after"], better=better, unit=row["unit"], matters=tolerance
        )
        ends = "no interval: too few values"
        return (FAIL, f"{worse}; {ends}") if change == WORSE else (PASS, ends)
    ends = f"ratio within {spoken_ends(low, high)}"
    is_beyond = of_values(row["before"], row["after"], better=better, matters=tolerance) == WORSE
    if is_beyond and of_interval(low, high, better=better) == WORSE:
        return FAIL, f"{worse}; {ends}"
    if high <= 1 + tolerance if better == "lower" else low >= 1 / (1 + tolerance):
        return PASS, ends
    return (
        ERROR,
        f"cannot tell: {ends}, pass and fail are possible; record more steps, or {SEVERAL} repeats of each",
    )


def _limited(
    found: Comparison, budget: Budget, doubts: Sequence[Doubt], has_baseline: bool
) -> Iterator[Verdict]:
    """Yield the verdict on each figure whose largest ("max") or smallest ("min") value the budget limits."""
    rows = {row["id"]: row for row in _records(found.figures)}
    for name, own in budget.figures.items():
        row = rows.get(name)
        is_of_unit = found.unit != STEP and any(fnmatchcase(name, pattern) for pattern in OF_STEPS)
        for end in (end for end in ("max", "min") if end in own and not own.get("ignore")):
            limit = own[end]
            if row is None or math.isnan(row["after"]) or is_of_unit:
                yield missing(name, f"{end} {limit:g}", BUDGET)
                continue
            outcome, reason = _within(
                limit, end, *found.step_ends.get(name, (row["after"], row["after"]))
            )
            why = _doubted(row, doubts, budget.tolerance)
            if why:
                outcome, reason = ERROR, why
            shown = row if has_baseline else {**row, **dict.fromkeys(("before", *RATIOS), math.nan)}
            yield judged(shown, f"{end} {spoken(row['unit'], limit)}", outcome, reason, BUDGET)


def _within(limit: float, end: str, low: float, high: float) -> tuple[str, str]:
    """Return whether a value between `low` and `high` keeps a limit, its largest ("max") or smallest ("min")."""
    if low > limit if end == "max" else high < limit:
        return FAIL, "above the limit" if end == "max" else "below the limit"
    if high <= limit if end == "max" else low >= limit:
        return PASS, "within the limit"
    return (
        ERROR,
        "cannot tell: the limit is inside the interval of the steps; record more steps, or repeats",
    )


def load_budget(path: str | Path) -> Budget:
    """Read a budget.

    Raises ReadError if the file cannot be read, is no TOML, or holds an unknown key or a value that is none. The
    message names the file, the key and the values that it can have.
    """
    content = toml(Path(path))
    legal = {
        "tolerance": KEYS["tolerance"],
        "noise": "a number from 0 to 0.5",
        "figures": "tables, one per figure",
    }
    _known(path, "", content, legal)
    figures = content.get("figures", {})
    for name, limits in figures.items():
        _known(path, f"figures.{name}.", limits, KEYS)
    noise = float(content.get("noise", NOISE))
    return Budget(str(path), float(content.get("tolerance", TOLERANCE)), noise, figures)


def _known(path: str | Path, place: str, table: object, legal: Mapping[str, str]) -> None:
    """Refuse a key that has no meaning, and a value that is none for its key."""
    if not isinstance(table, dict):
        name = printable(place.rstrip("."), 80)
        raise ReadError(
            f"{path}: {name} is {printable(table, 40)!r}, no table. Give it {', '.join(legal)}."
        )
    for key, value in table.items():
        name = printable(f"{place}{key}", 80)
        if key not in legal:
            raise ReadError(f"{path}: the key {name} is unknown. Use {', '.join(legal)}.")
        plain = finite(value) is not None
        fits = {"ignore": isinstance(value, bool), "figures": isinstance(value, dict)}.get(
            key, plain
        )
        is_outside = (key == "tolerance" and fits and value < 0) or (
            key == "noise" and fits and not 0 <= value <= 0.5
        )
        if not fits or is_outside:
            raise ReadError(f"{path}: {name} is {printable(value, 40)!r}. Give {legal[key]}.")


def judged(
    row: Mapping[str, Any], limit: str, outcome: str, reason: str, against: str = BASELINE
) -> Verdict:
    """Return the verdict on a row of COMPARED_FIGURES."""
    before, after, ratio, low, high = (float(row[name]) for name in ("before", "after", *RATIOS))
    about = str(row["id"]), str(row["label"]), str(row["unit"])
    return Verdict(*about, before, after, ratio, low, high, limit, outcome, reason, against)


def missing(name: str, limit: str, against: str = BASELINE) -> Verdict:
    """Return the verdict on a figure that the budget names and the run does not have."""
    return Verdict(
        name, name, "", *(math.nan,) * 5, limit, ERROR, "the run lacks this figure", against
    )
