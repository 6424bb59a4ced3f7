"""The tables of several profiles as one, nothing told twice.

Functions
---------
stacked     tables one after the other
distinct    SAMPLES of several tools, no metric of a GPU told twice
devices     DEVICES, no GPU twice
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

SHOWN = 3


class _Series(NamedTuple):
    """The readings [start, stop) of one metric of a device in one of several frames."""

    device: tuple[int, int, str]
    frame: int
    start: int
    stop: int
    first_ns: int
    last_ns: int

    @property
    def readings(self) -> int:
        """How many there are."""
        return self.stop - self.start

    def meets(self, other: _Series) -> bool:
        """Tell whether two have readings of one time; a single reading is of the time of all others."""
        alone = 1 in (self.readings, other.readings)
        return alone or (self.first_ns <= other.last_ns and other.first_ns <= self.last_ns)


def stacked(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Stack frames; categories are united, which plain concatenation would turn into text."""
    columns = {}
    for name in parts[0].columns:
        values = [part[name] for part in parts]
        if isinstance(values[0].dtype, pd.CategoricalDtype):
            columns[name] = pd.Series(union_categoricals(values, sort_categories=True))
        else:
            columns[name] = pd.concat(values, ignore_index=True)
    return pd.DataFrame(columns, copy=False)


def distinct(frames: Sequence[pd.DataFrame], names: Sequence[str]) -> tuple[list[pd.DataFrame], list[str]]:
    """Return SAMPLES of one rank numbering and clock, each without the series that another tells of the same time.

    Of two the one with more readings is kept, of equal ones the first.

    Parameters
    ----------
    frames
        SAMPLES in their order.
    names
        What each is called in the notes.

    Returns
    -------
    tuple
        The frames, and notes on what was left out of which.
    """
    if len(frames) < 2:
        return list(frames), []
    every = sorted((s for i, frame in enumerate(frames) for s in _series(frame, i)), key=lambda s: -s.readings)
    kept: dict[tuple[int, int, str], list[_Series]] = {}
    masks = [np.ones(len(frame), bool) for frame in frames]
    left: dict[tuple[int, int], dict[str, None]] = {}
    for one in every:
        better = next(
            (other for other in kept.get(one.device, ()) if other.frame != one.frame and other.meets(one)), None
        )
        if better is None:
            kept.setdefault(one.device, []).append(one)
        else:
            masks[one.frame][one.start : one.stop] = False
            left.setdefault((one.frame, better.frame), {})[one.device[2]] = None
    notes = [
        f"{names[less]}: {_listed(list(metrics))} left out, {names[more]} has more readings of the same GPUs"
        for (less, more), metrics in sorted(left.items())
    ]
    return [frame if mask.all() else frame[mask] for frame, mask in zip(frames, masks, strict=True)], notes


def _series(frame: pd.DataFrame, number: int) -> list[_Series]:
    """Return the series of a table whose order puts the readings of each one after the other."""
    keys = [frame[name].to_numpy() for name in ("rank", "gpu")] + [frame["metric"].cat.codes.to_numpy()]
    changed = np.logical_or.reduce([np.diff(key) != 0 for key in keys])
    starts = np.append(0, 1 + np.flatnonzero(changed))[: len(frame)]
    stops = np.append(starts[1:], len(frame))[: len(starts)]
    heads, times = frame.iloc[starts], frame["time_ns"].to_numpy()
    devices = zip(heads["rank"].tolist(), heads["gpu"].tolist(), heads["metric"].astype(str), strict=True)
    return [
        _Series(device, number, start, stop, int(times[start]), int(times[stop - 1]))
        for device, start, stop in zip(devices, starts.tolist(), stops.tolist(), strict=True)
    ]


def _listed(metrics: list[str]) -> str:
    return ", ".join(metrics[:SHOWN]) + (f" and {len(metrics) - SHOWN} more" if len(metrics) > SHOWN else "")


def devices(frame: pd.DataFrame) -> pd.DataFrame:
    """Return DEVICES with each GPU once, from the row that knows most of it."""
    known = frame.astype(object).where(frame.notna(), "").map(bool).sum(axis=1)
    order = np.argsort(-known.to_numpy(), kind="stable")
    return frame.iloc[order].drop_duplicates(["rank", "gpu"]).sort_index()
