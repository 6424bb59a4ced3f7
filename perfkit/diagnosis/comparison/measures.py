"""The figures of two runs side by side, with those that only a comparison has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis import compare
from perfkit.analysis.compare.resampling import SEVERAL, Resampling, enough, ratio
from perfkit.diagnosis.comparison.sides import Side
from perfkit.diagnosis.finding import Figure

Ends = tuple[float, float]


def side_by_side(
    old: Side,
    new: Side,
    tables: Mapping[str, pd.DataFrame],
    how: Resampling,
    *,
    peaks: str,
    tolerance: float,
    matters: float,
) -> pd.DataFrame:
    """Return COMPARED_FIGURES of both sides: means over repeats, with the figures of the comparison's own `tables`."""
    from perfkit.diagnosis import figures

    found = [[figures(view, peaks=peaks) for view in side.views] for side in (old, new)]
    means = [_mean(side) for side in found]
    intervals = _of_repeats(found[0], found[1], how)
    moving = {name: matters * float(tables["parts"]["before_ns"].sum()) for name in _part_ids(tables)}
    for figure, value, ends in _own(tables):
        for side, number in zip(means, value, strict=True):
            if not np.isnan(number):
                side[figure.id] = replace(figure, value=number)
        if ends:
            intervals[figure.id] = ends
    before, after = (pd.DataFrame(list(side.values()), columns=compare.FIGURES.column_names) for side in means)
    frames = compare.FIGURES.make(before), compare.FIGURES.make(after)
    return compare.figures(*frames, intervals=intervals, least=moving, tolerance=tolerance, matters=matters)


def _mean(repeats: Sequence[Mapping[str, Figure]]) -> dict[str, Figure]:
    """Return the mean of each figure over the repeats that have it."""
    every = {key: figure for run in reversed(repeats) for key, figure in run.items()}
    order = dict.fromkeys(key for run in repeats for key in run)
    return {
        key: replace(every[key], value=float(np.mean([run[key].value for run in repeats if key in run])))
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


def _own(tables: Mapping[str, pd.DataFrame]) -> Iterator[tuple[Figure, Ends, Ends | None]]:
    """Yield the figures of the comparison itself: as before, their values, and the ends of the ratio's interval."""
    for row in tables["steps"].to_dict("records"):
        label, definition = f"{str(row['statistic']).capitalize()} step", f"{row['statistic']} of the steady steps"
        figure = Figure(f"step_{row['statistic']}_ns", label, 0.0, "ns", definition, "compare.steps")
        yield figure, (row["before_ns"], row["after_ns"]), (row["ratio_low"], row["ratio_high"])
    for name, row in zip(_part_ids(tables), tables["parts"].to_dict("records"), strict=True):
        definition = "mean over the steady steps, time of a GPU between the start and the end of a step"
        figure = Figure(name, f"{str(row['part']).capitalize()} per step", 0.0, "ns", definition, "compare.parts")
        ends = (row["ratio_low"], row["ratio_high"]) if row["before_ns"] else None
        yield figure, (row["before_ns"], row["after_ns"]), ends
    for row in tables["families"].to_dict("records") if len(tables["steps"]) else []:
        family = str(row["family"])
        definition = f"mean sum of the durations of {family} kernels in a steady step"
        figure = Figure(f"family_{family}_ns", f"{family} per step", 0.0, "ns", definition, "compare.families")
        yield figure, (row["before_ns"], row["after_ns"]), (row["ratio_low"], row["ratio_high"])
    for name in ("kernels", "launches"):
        both = tables[name][(tables[name]["count_before"] > 0) & (tables[name]["count_after"] > 0)]
        if len(both):
            mean_ns = both["total_after_ns"] / both["count_after"]
            value = float(both["total_before_ns"].sum()), float((mean_ns * both["count_before"]).sum())
            definition = "kernels of one name and grid in both runs: each with its mean, as often as before"
            figure = Figure("matched_kernels_ns", "Kernels in both runs", 0.0, "ns", definition, f"compare.{name}")
            yield figure, value, None
            return


def _part_ids(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    return [f"part_{str(part).replace(' ', '_')}_ns" for part in tables["parts"]["part"]]
