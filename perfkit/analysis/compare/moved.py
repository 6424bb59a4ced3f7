"""In which step does each kernel run, and from which families did time move per step?

Functions
---------
in_steps    the kernels of the steady steps, each with its step
families    kernel time per step of each family, of two runs
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfkit.analysis.calls import started_by
from perfkit.analysis.compare.resampling import CONFIDENCE, RESAMPLES, Floats, Resampling, ratio
from perfkit.analysis.compare.stepping import HIGH, LOW, RATIO, VERDICT, Frames, compared
from perfkit.analysis.compare.verdicts import GONE, MATTERS, NEW
from perfkit.analysis.intervals import Int
from perfkit.analysis.statistics import numbered
from perfkit.analysis.steps import STEPS
from perfkit.schema import Column, Table
from perfkit.tables import API_CALLS, KERNELS

FAMILIES = Table(
    "FAMILIES",
    "a family of kernels in two runs",
    (
        Column("family", "category", "kind of work"),
        Column("before_ns", "float64", "kernel time before, ns per step of a rank, or per run without steps"),
        Column("after_ns", "float64", "kernel time after, ns per step of a rank, or per run without steps"),
        Column("difference_ns", "float64", "after less before, ns: the time that moved"),
        RATIO,
        LOW,
        HIGH,
        VERDICT,
    ),
    (),  # the largest difference first
)


def in_steps(kernels: pd.DataFrame, steps: pd.DataFrame, *, api_calls: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return the kernels of the steady steps, with the step they belong to.

    A kernel belongs to the step in which the call that launched it began, where the steps are spans on the host and
    the call was recorded: the GPU may run it later. Else it belongs to the step in which it began itself.

    Parameters
    ----------
    kernels
        KERNELS; may be empty.
    steps
        What `analysis.steps.detect` returned; may be empty.
    api_calls
        API_CALLS of the same run; without it every kernel counts by its own start.

    Returns
    -------
    pandas.DataFrame
        The rows of KERNELS that belong to a steady step, with `step` int64, its number in the rank.

    Raises
    ------
    SchemaError
        If a table is not what it should be.

    Examples
    --------
    >>> in_steps(KERNELS.empty(), STEPS.empty()).columns[-1]
    'step'
    """
    STEPS.check(steps)
    start = KERNELS.check(kernels)["start_ns"].to_numpy()
    if api_calls is not None and not steps["how"].eq("kernel sequence").all():
        start = _called(kernels, API_CALLS.check(api_calls), start)
    place = np.full(len(kernels), -1, np.int64)
    rank = kernels["rank"].to_numpy()
    for one, spans in steps[steps["steady"]].groupby("rank"):
        mine = np.flatnonzero(rank == one)
        begin = spans["start_ns"].to_numpy()
        at = np.searchsorted(begin, start[mine], side="right") - 1
        inside = (at >= 0) & (start[mine] < (begin + spans["dur_ns"].to_numpy())[at])
        place[mine[inside]] = spans["step"].to_numpy()[at[inside]]
    found = np.flatnonzero(place >= 0)
    chosen = kernels if len(found) == len(kernels) else kernels.take(found).reset_index(drop=True)
    return chosen.assign(step=place[found])


def _called(kernels: pd.DataFrame, api_calls: pd.DataFrame, start: Int) -> Int:
    """Return when each kernel was launched, where that is known; else when it started."""
    place = started_by(kernels, api_calls)
    launched = np.append(api_calls["start_ns"].to_numpy(), -1)[place]
    return np.where((place >= 0) & (launched <= start), launched, start)


def families(
    before: Frames,
    after: Frames,
    *,
    statistic: str = "mean",
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
    matters: float = MATTERS,
) -> pd.DataFrame:
    """Return the kernel time of each family before and after, per step, with an interval for the ratio.

    The time of a family in a step is the sum of the durations of its kernels; kernels that run at once count in full.
    Means add up: the differences of all families sum to that of all kernel time.

    Parameters
    ----------
    before, after
        What `in_steps` returned, or KERNELS, or a sequence of such frames, one per repeat; may be empty. Of KERNELS
        without steps the time is that of the whole run, which says nothing where runs were recorded for different
        lengths, and has an interval from three repeats on.
    statistic
        "mean" or "median" over the steps.
    confidence, resamples, seed, matters
        As in `compare.steps`.

    Returns
    -------
    pandas.DataFrame
        FAMILIES, by falling size of the difference, ties by name: times float64 ns; `ratio` NaN for a new family, its
        interval NaN too where there are too few steps; `verdict` also "new" and "gone".

    Raises
    ------
    SchemaError
        If a frame is not KERNELS.
    ValueError
        If one side has steps and the other has none, or an argument cannot be used.

    Examples
    --------
    >>> len(families(KERNELS.empty(), KERNELS.empty()))
    0
    """
    how = Resampling(statistic, confidence, resamples, seed).checked()
    old, new = stepwise(before), stepwise(after)
    same_unit(old, new)
    spent = [[_per_step(frame) for frame in frames] or [{}] for frames in (old, new)]
    rows = []
    for family in sorted({name for side in spent for run in side for name, times in run.items() if times.any()}):
        was, now = ([_of(run, family) for run in side] for side in spent)
        row = compared(ratio(was, now, how), "_ns", matters)
        if not row["before_ns"] > 0 or not row["after_ns"] > 0:
            row["verdict"] = GONE if row["before_ns"] > 0 else NEW
        rows.append({"family": family, **row})
    table = FAMILIES.make(pd.DataFrame(rows, columns=FAMILIES.column_names))
    order = np.lexsort([table["family"].astype(str), -table["difference_ns"].abs()])
    return table.iloc[order].reset_index(drop=True)


def stepwise(given: Frames) -> list[pd.DataFrame]:
    """Return the frames of a side, those without a kernel left out."""
    frames: Sequence[pd.DataFrame] = [given] if isinstance(given, pd.DataFrame) else list(given)
    return [frame for frame in frames if len(KERNELS.check(frame))]


def same_unit(old: Sequence[pd.DataFrame], new: Sequence[pd.DataFrame]) -> None:
    """Refuse to compare kernels per step with kernels per run."""
    stepped = {"step" in frame for frame in (*old, *new)}
    if len(stepped) > 1:
        raise ValueError("before, after: some have a column step and some have none. Pass all through in_steps.")


def _per_step(kernels: pd.DataFrame) -> dict[str, Floats]:
    """Return the time of each family in each step in order, ns, mean over the ranks; without steps, of the run."""
    family = kernels["family"].astype("category").cat
    count = len(family.categories)
    code = family.codes.to_numpy(np.int64)
    if "step" not in kernels:
        table = np.bincount(code, kernels["dur_ns"], count).astype(np.float64)[None, :]
    else:
        unit, number = numbered(kernels, ["step", "rank"])
        spent = np.bincount(number * count + code, kernels["dur_ns"], len(unit) * count).reshape(-1, count)
        step, place = np.unique(unit["step"], return_inverse=True)
        sums = np.zeros((len(step), count))
        np.add.at(sums, place, spent)
        table = sums / np.bincount(place)[:, None]
    return dict(zip(family.categories.astype(str), table.T, strict=True))


def _of(run: dict[str, Floats], family: str) -> Floats:
    """Return the times of a family, zeros where the run has none of it."""
    return run.get(family, np.zeros(max(map(len, run.values()), default=1)))
