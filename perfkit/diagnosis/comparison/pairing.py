"""Two runs side by side: what both recorded is compared, what makes it doubtful is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from perfkit.analysis import compare
from perfkit.analysis.compare.resampling import CONFIDENCE, Resampling
from perfkit.diagnosis.comparison.doubts import cautions, lacking, sureness, unshared, untimed
from perfkit.diagnosis.comparison.measures import side_by_side
from perfkit.diagnosis.comparison.sides import Given, Side, common, side, timed
from perfkit.diagnosis.finding import Refusal
from perfkit.errors import PerfkitError
from perfkit.run import Run


@dataclass(frozen=True)
class Comparison:
    """What differs between two runs; frames of what they do not share are empty.

    `figures` is COMPARED_FIGURES, `steps` COMPARED_STEPS, `parts` PARTS, `families` FAMILIES; `kernels` is per step
    where both runs have steps; `launches`, `paths` (of the metric `paths_metric`) and `samples` as from
    `analysis.compare`. `cautions` lower the `confidence`: high, medium or low. `repeats`: the runs before and after.
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


def compared(
    before: Given,
    after: Given,
    *,
    peaks: str = "",
    confidence: float = 0.95,
    seed: int = 0,
    matters: float = compare.MATTERS,
    tolerance: float = compare.TOLERANCE,
) -> Comparison:
    """Return what differs between two runs of one kind, or two groups of repeats.

    Parameters
    ----------
    before, after
        A run, a selection of one, or a sequence of them: repeats of one program.
    peaks
        As in `diagnosis.figures`.
    confidence, seed, matters
        As in `analysis.compare.steps`.
    tolerance
        As in `analysis.compare.figures`, for what has no interval.

    Returns
    -------
    Comparison

    Raises
    ------
    PerfkitError
        If the two share nothing that could be compared.
    ValueError
        If there is no run on a side, or a number cannot be used.
    """
    old, new = side("before", before), side("after", after)
    shared = common(old, new)
    if not shared:
        raise PerfkitError(f"before, after: {lacking(old, new)}. Record both with the same profiler.")
    how = Resampling("median", confidence, seed=seed).checked()
    if "kernels" in shared or (old.is_of_host and new.is_of_host):
        old, new = timed(old, new)
    rest, metric = _others(old, new, shared, tolerance)
    tables = {**_moved(old, new, how, matters, tolerance), **rest}
    doubts = list(cautions(old, new))
    unanswered = list(untimed(old, new, tables["steps"]))
    return Comparison(
        figures=side_by_side(old, new, tables, how, peaks=peaks, tolerance=tolerance, matters=matters),
        **tables,
        paths_metric=metric,
        confidence=sureness(doubts, unanswered),
        cautions=tuple(text for text, _ in doubts),
        refusals=(*unanswered, *unshared(old, new)),
        repeats=(len(old.views), len(new.views)),
    )


def nothing(refusal: Refusal) -> Comparison:
    """Return a comparison of nothing, and why."""
    empty = Side([]), Side([])
    how = Resampling("median", CONFIDENCE)
    return Comparison(
        figures=compare.COMPARED_FIGURES.empty(),
        **_moved(*empty, how, compare.MATTERS, compare.TOLERANCE),
        launches=compare.launches([], []),
        paths=compare.PATHS.empty(),
        paths_metric="",
        samples=compare.COMPARED_SAMPLES.empty(),
        confidence="low",
        cautions=(),
        refusals=(refusal,),
        repeats=(0, 0),
    )


def _moved(old: Side, new: Side, how: Resampling, matters: float, tolerance: float) -> dict[str, pd.DataFrame]:
    """Return steps, their parts, families and kernels side by side."""
    chosen: dict[str, Any] = {"confidence": how.confidence, "seed": how.seed, "matters": matters}
    return {
        "steps": compare.steps(old.steps, new.steps, **chosen),
        "parts": compare.parts(old.parts, new.parts, **chosen),
        "families": compare.families(old.kernels, new.kernels, **chosen),
        "kernels": compare.kernels(old.kernels, new.kernels, by="grid", tolerance=tolerance),
    }


def _others(old: Side, new: Side, shared: Sequence[str], tolerance: float) -> tuple[dict[str, pd.DataFrame], str]:
    """Return what is no timeline: counters, call paths (of the first repeats) and samples, and the paths' metric."""
    from perfkit.diagnosis.paths import metric

    empty = [[frame.iloc[:0] for frame in side.table("launches")] for side in (old, new)]
    pair = [side.table("launches") for side in (old, new)] if "launches" in shared else empty
    runs = [side.views[0].run for side in (old, new)]
    named = metric(new.views[0]) if "calltree" in shared else ""
    if named != metric(old.views[0]) or not named:
        named = ""
    trees = [(run.calltree, run.call_metrics) if named else _no_paths(run) for run in runs]
    samples = [side.views[0].samples for side in (old, new)]
    return {
        "launches": compare.launches(*pair, tolerance=tolerance),
        "paths": compare.paths(*trees, metric=named, tolerance=tolerance),
        "samples": compare.samples(*(frame if "samples" in shared else frame.iloc[:0] for frame in samples)),
    }, named


def _no_paths(run: Run) -> tuple[pd.DataFrame, pd.DataFrame]:
    return run.calltree.iloc[:0], run.call_metrics.iloc[:0]
