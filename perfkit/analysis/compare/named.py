"""How do named figures of two runs compare?

Functions
---------
figures    figures side by side, with a verdict each
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from perfkit.analysis.compare.verdicts import (
    BETTER,
    MATTERS,
    TOLERANCE,
    UNSEEN,
    UNTESTED,
    WORSE,
    direction,
    of_interval,
    of_values,
)
from perfkit.schema import Column, Table

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

    Which way is better stands in `verdicts.DIRECTIONS`; a figure that has no direction, such as a total that depends
    on how long was recorded, is "changed". Better or worse is only what has an interval; other figures that differ are
    "changed, not tested". A share can fall because work got faster: the step time decides.

    Parameters
    ----------
    before, after
        FIGURES; may be empty; no id twice.
    intervals
        Id -> (low, high) of the ratio after / before, of the figures that can have one: it decides; NaN, too few
        values, is "cannot tell".
    least
        Id -> absolute difference that matters, in the figure's unit: one with an interval must differ by more.
    tolerance
        Relative difference up to which figures without an interval show no difference; fractions must differ by one
        point in a hundred as well.
    matters
        How far an interval must lie from 1.

    Returns
    -------
    pandas.DataFrame
        COMPARED_FIGURES, a row per figure that either run has, in their order.

    Raises
    ------
    SchemaError
        If a frame is not FIGURES.
    ValueError
        If a frame has an id twice.

    Examples
    --------
    >>> len(figures(FIGURES.empty(), FIGURES.empty()))
    0
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
    known = intervals or {}
    ends = [known.get(name) for name in every]
    for i, column in enumerate(("ratio_low", "ratio_high")):
        table[column] = [end[i] if end else np.nan for end in ends]
    table["difference"] = table["after"] - table["before"]
    table["ratio"] = table["after"] / table["before"].where(table["before"] != 0)
    better = [direction(name) for name in every]
    table["better"] = [way or None for way in better]
    smallest = [(least or {}).get(name, 0.0) for name in every]
    rows = zip(table["before"], table["after"], table["unit"], better, ends, smallest, strict=True)
    table["verdict"] = [_verdict(*row, tolerance=tolerance, matters=matters) for row in rows]
    return COMPARED_FIGURES.make(table)


def _verdict(
    before: float,
    after: float,
    unit: str,
    better: str,
    ends: tuple[float, float] | None,
    least: float,
    *,
    tolerance: float,
    matters: float,
) -> str:
    """Return the verdict by the interval, of figures that could have one; else whether the values differ."""
    if ends is None or np.isnan(before) or np.isnan(after):
        said = of_values(before, after, better=better, unit=unit, matters=tolerance)
        return UNTESTED if said in (BETTER, WORSE) else said
    return UNSEEN if abs(after - before) < least else of_interval(*ends, better=better, matters=matters)
