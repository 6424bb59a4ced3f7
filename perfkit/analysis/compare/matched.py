"""Which kernels of two runs are the same, which are new or gone, and where did their time move?

Functions
---------
kernels     the kernels of two timelines
launches    the kernels of two reports of counters
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import names
from perfkit.analysis.compare.moved import same_unit, stepwise
from perfkit.analysis.compare.stepping import Frames
from perfkit.analysis.compare.verdicts import CHANGED, GONE, NEW, TOLERANCE
from perfkit.analysis.intervals import Int
from perfkit.analysis.kernels import KEYS
from perfkit.analysis.statistics import grouped, numbered
from perfkit.tables import LAUNCHES

SAME = "same"
STATUS = (CHANGED, SAME, NEW, GONE)
ORDER = [*KEYS["grid"], "nth"]
MATCHED_BY = {**KEYS, "order": ORDER}
SIDES = ("before", "after")
VALUES = ["count", "total_ns", "median_ns"]
TYPES = {"grid_blocks": "Int64", "block_threads": "Int64", "nth": "int64", **dict.fromkeys(VALUES, "float64")}


def kernels(before: Frames, after: Frames, *, by: str = "name", tolerance: float = TOLERANCE) -> pd.DataFrame:
    """Return the kernels of two runs side by side: launches, time and median, what changed, what is new or gone.

    Parameters
    ----------
    before, after
        KERNELS, or what `in_steps` returned, or a sequence of such frames, one per repeat; may be empty. Counts and
        totals are per step of a rank where kernels have a `step`, else per repeat: of runs recorded for different
        lengths only the medians compare.
    by
        What makes a kernel the same: "name", "full_name", "family", "grid" (full name, blocks, threads of a block),
        or "order": in addition its place among the launches of that grid in its step.
    tolerance
        Relative difference of total or count up to which a kernel is "same".

    Returns
    -------
    pandas.DataFrame
        By falling size of the difference, ties by name. The key columns, and `name` and `family` category, the family
        missing where a name has several; `count_before`, `count_after`, `total_before_ns`, `total_after_ns` float64, 0
        where a run has no such kernel; `median_before_ns`, `median_after_ns` float64 over the launches, NaN there;
        `difference_ns` float64, of the totals; `ratio` and `median_ratio` float64, after over before, NaN for new
        kernels, the second for gone ones too; `status` category: changed, same, new or gone.

    Raises
    ------
    SchemaError
        If a frame is not KERNELS.
    ValueError
        If `by` is none of the five, "order" without steps, or one side has steps and the other has none.

    Examples
    --------
    >>> from perfkit.tables import KERNELS
    >>> kernels(KERNELS.empty(), KERNELS.empty()).columns.tolist()[:4]
    ['name', 'family', 'count_before', 'count_after']
    """
    _known(by, MATCHED_BY)
    old, new = stepwise(before), stepwise(after)
    same_unit(old, new)
    if by == "order" and not all("step" in frame for frame in (*old, *new)):
        raise ValueError("by: 'order' needs kernels with a step. Pass them through in_steps.")
    if by == "order":
        old, new = ([_numbered(frame) for frame in frames] for frames in (old, new))
    return _side_by_side([_totals(old, MATCHED_BY[by]), _totals(new, MATCHED_BY[by])], MATCHED_BY[by], tolerance)


def launches(before: Frames, after: Frames, *, by: str = "grid", tolerance: float = TOLERANCE) -> pd.DataFrame:
    """Return the kernels of two reports of counters side by side; times are those measured under the counters.

    Parameters
    ----------
    before, after
        LAUNCHES, or a sequence of such frames, one per repeat; may be empty. Launches without a duration are left out.
    by
        "name", "full_name", "family" or "grid".
    tolerance
        As in `kernels`.

    Returns
    -------
    pandas.DataFrame
        As from `kernels`.

    Raises
    ------
    SchemaError
        If a frame is not LAUNCHES.
    ValueError
        If `by` is none of the four.

    Examples
    --------
    >>> launches(LAUNCHES.empty(), LAUNCHES.empty(), by="name")["status"].tolist()
    []
    """
    _known(by, KEYS)
    sides = [_totals([_timed(frame) for frame in _frames(side)], KEYS[by]) for side in (before, after)]
    return _side_by_side(sides, KEYS[by], tolerance)


def _known(by: str, legal: dict[str, list[str]]) -> None:
    if by not in legal:
        raise ValueError(f"by: {by!r} is not one of {list(legal)}")


def _frames(given: Frames) -> Sequence[pd.DataFrame]:
    return [given] if isinstance(given, pd.DataFrame) else given


def _timed(launches: pd.DataFrame) -> pd.DataFrame:
    """Return the launches that have a duration, with the family of their name."""
    timed = LAUNCHES.check(launches)[launches["dur_ns"].notna()]
    family = [names.family(str(name)) for name in timed["full_name"].cat.categories]
    of_row = np.array([*family, "other"], object)[timed["full_name"].cat.codes.to_numpy()]
    return timed.assign(family=pd.Categorical(of_row))


def _numbered(kernels: pd.DataFrame) -> pd.DataFrame:
    """Add `nth`: the place of each launch among those of its kernel and grid in its step on its GPU, from 0."""
    group = numbered(kernels, ["rank", "gpu", "step", *KEYS["grid"]])[1]
    order = np.argsort(group, kind="stable")  # the kernels of a GPU are in the order of their starts
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    place = np.arange(len(group)) - np.repeat(first, np.diff(first, append=len(group)))
    nth = np.empty(len(group), np.int64)
    nth[order] = place
    return kernels.assign(nth=nth)


def _totals(frames: Sequence[pd.DataFrame], keys: list[str]) -> pd.DataFrame:
    """Return count, total and median of each kernel of one side, per step or per repeat."""
    columns = list(dict.fromkeys([*keys, "name", "family"]))
    kept = [frame[[*columns, "dur_ns"]].astype(dict.fromkeys(_text(columns), "category")) for frame in frames]
    units = sum(_units(frame) for frame in frames)
    whole = _stacked(kept, _text(columns))
    if whole is None:
        return pd.DataFrame({column: pd.Series(dtype=TYPES.get(column, "object")) for column in [*columns, *VALUES]})
    table, group = numbered(whole, keys)
    figures = grouped(whole["dur_ns"].to_numpy(), group, len(table))
    for column in {"name", "family"} - set(keys):
        table[column] = _only(whole[column], group, len(table))
    table = table.astype(dict.fromkeys(_text(columns), object))
    return table.assign(count=figures["count"] / units, total_ns=figures["total"] / units, median_ns=figures["median"])


def _text(columns: list[str]) -> list[str]:
    return [column for column in columns if column in ("name", "full_name", "family")]


def _units(frame: pd.DataFrame) -> int:
    return len(frame[["rank", "step"]].drop_duplicates()) if "step" in frame else 1


def _stacked(frames: Sequence[pd.DataFrame], texts: list[str]) -> pd.DataFrame | None:
    """Return the frames one after the other, their names as categories of one set; None for no frame."""
    if len(frames) < 2:
        return frames[0] if frames and len(frames[0]) else None
    for column in texts:
        every = pd.Index(np.unique(np.concatenate([frame[column].cat.categories.astype(str) for frame in frames])))
        frames = [frame.assign(**{column: frame[column].cat.set_categories(every)}) for frame in frames]
    whole = pd.concat(frames, ignore_index=True)
    return whole if len(whole) else None


def _only(column: pd.Series, group: Int, groups: int) -> pd.Series:
    """Return the value that all rows of a group have, missing where they differ."""
    code = column.cat.codes.to_numpy(np.int64)
    low, high = np.full(groups, np.iinfo(np.int64).max), np.full(groups, -1, np.int64)
    np.minimum.at(low, group, code)
    np.maximum.at(high, group, code)
    alike = np.where(low == high, high, -1)
    return pd.Series(pd.Categorical.from_codes(alike, categories=column.cat.categories))


def _side_by_side(sides: list[pd.DataFrame], keys: list[str], tolerance: float) -> pd.DataFrame:
    """Return one row per kernel of either side."""
    others = [column for column in ("name", "family") if column not in keys]
    named = [
        side.rename(columns={column: f"{column}_{which}" for column in [*VALUES, *others]})
        for which, side in zip(SIDES, sides, strict=True)
    ]
    table = named[0].merge(named[1], on=keys, how="outer")
    for column in others:
        table[column] = table[f"{column}_after"].where(table[f"{column}_after"].notna(), table[f"{column}_before"])
    made = table[list(dict.fromkeys([*keys[:1], *others, *keys[1:]]))].assign(**_values(table))
    made["status"] = pd.Categorical(_status(made, tolerance), categories=STATUS)
    made = made.astype(dict.fromkeys(_text([str(name) for name in made]), "category"))
    order = np.lexsort([*(made[key].astype(str) for key in reversed(keys)), -made["difference_ns"].abs()])
    return made.iloc[order].reset_index(drop=True)


def _values(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return counts, totals and medians of both sides, and what lies between them."""
    made = {}
    for value, missing in (("count", 0.0), ("total_ns", 0.0), ("median_ns", np.nan)):
        stem, unit = value.removesuffix("_ns"), "_ns" * value.endswith("_ns")
        for side in SIDES:
            made[f"{stem}_{side}{unit}"] = table[f"{value}_{side}"].astype("float64").fillna(missing)
    total, median = ((made[f"{stem}_before_ns"], made[f"{stem}_after_ns"]) for stem in ("total", "median"))
    made["difference_ns"] = total[1] - total[0]
    for name, (old, new) in (("ratio", total), ("median_ratio", median)):
        made[name] = new / old.where(old > 0)
    return made


def _status(made: pd.DataFrame, tolerance: float) -> NDArray[np.str_]:
    """Say what became of each kernel."""
    old, new = made["count_before"], made["count_after"]
    moved = (new - old).abs() > tolerance * old
    moved |= made["difference_ns"].abs() > tolerance * made["total_before_ns"]
    return np.select([old == 0, new == 0, moved], [NEW, GONE, CHANGED], default=SAME)
