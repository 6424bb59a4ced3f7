"""Lanes beside those of the streams: copies by direction, CUDA calls, NVTX ranges and steps.

Functions
---------
copies, calls, ranges, steps    the lanes of a table, sorted once
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfkit.analysis.calls import is_launch, is_memory, is_sync, numbered_together
from perfkit.analysis.intervals import Int
from perfkit.analysis.lanes import Spans
from perfkit.charts.labels import devices

CALLS = ("launch", "sync", "memory", "call")
DIRECTIONS = ("H2D", "D2H", "D2D", "P2P", "H2H", "memset", "unknown")
THREAD = ["rank", "process", "thread"]


@dataclass(frozen=True)
class Source:
    """Rows of a table in groups; a lane holds one group for each kind that it has."""

    nouns: tuple[str, str]  # one row, several
    frame: pd.DataFrame
    spans: Spans
    lanes: pd.DataFrame  # label, and the columns by which lanes are chosen: rank, and gpu if there
    kinds: tuple[str, ...]  # of the groups of each lane, in their order
    is_sparse: bool = False  # whether the longest rows tell more than how much of the time any row runs


def copies(frame: pd.DataFrame) -> Source:
    """Return a lane of COPIES per GPU and direction; what a profile calls otherwise is an unknown direction."""
    known = pd.Categorical(frame["direction"].astype(object), DIRECTIONS).codes.astype(np.int64)
    keyed = frame[["rank", "gpu"]].assign(way=np.where(known < 0, len(DIRECTIONS) - 1, known))
    lanes, lane = _numbered(keyed, ["rank", "gpu", "way"])
    lanes["label"] = devices(lanes[["rank", "gpu"]]) + " · " + lanes["way"].map(dict(enumerate(DIRECTIONS)))
    return Source(("copy or memset", "copies and memsets"), frame, Spans(frame, lane, len(lanes)), lanes, ("copied",))


def calls(frame: pd.DataFrame) -> Source:
    """Return a lane of API_CALLS per thread, with a group per kind of call."""
    lanes, lane = _numbered(frame, THREAD)
    kind = np.array([*(_kind(str(name)) for name in frame["name"].cat.categories), len(CALLS) - 1])
    group = lane * len(CALLS) + kind[frame["name"].cat.codes.to_numpy()]
    lanes["label"] = "CUDA calls · " + _threads(lanes)
    return Source(("CUDA call", "CUDA calls"), frame, Spans(frame, group, len(lanes) * len(CALLS)), lanes, CALLS)


def ranges(frame: pd.DataFrame) -> Source:
    """Return a lane of RANGES per thread."""
    lanes, lane = _numbered(frame, THREAD)
    lanes["label"] = "NVTX · " + _threads(lanes)
    return Source(
        ("NVTX range", "NVTX ranges"), frame, Spans(frame, lane, len(lanes)), lanes, ("range",), is_sparse=True
    )


def steps(frame: pd.DataFrame) -> Source:
    """Return a lane per rank of what `perfkit.analysis.steps.detect` found."""
    frame = frame.assign(name="step " + frame["step"].astype(str))
    lanes, lane = _numbered(frame, ["rank"])
    several = "rank " + lanes["rank"].astype(str) + " · steps"
    lanes["label"] = several if len(lanes) > 1 else "steps"
    return Source(("step", "steps"), frame, Spans(frame, lane, len(lanes)), lanes, ("step",), is_sparse=True)


def _kind(name: str) -> int:
    """A copy that waits is a launch as well: what it waits for is the longer part."""
    found = [is_sync(name), is_launch(name), is_memory(name)]
    return CALLS.index(("sync", "launch", "memory", "call")[(*found, True).index(True)])


def _numbered(frame: pd.DataFrame, columns: list[str]) -> tuple[pd.DataFrame, Int]:
    """Return the distinct combinations of integer columns, ascending, and the number of that of each row."""
    (number,) = numbered_together([frame], columns)
    first = np.full(int(number.max(initial=-1)) + 1, len(frame))
    np.minimum.at(first, number, np.arange(len(frame)))
    return frame[columns].take(first).reset_index(drop=True), number


def _threads(lanes: pd.DataFrame) -> pd.Series:
    """Return a label per thread; process and rank only where there are several."""
    label = "thread " + lanes["thread"].astype(str)
    for column in ("process", "rank"):
        if len(lanes[column].unique()) > 1:
            label = f"{column} " + lanes[column].astype(str) + " · " + label
    return label
