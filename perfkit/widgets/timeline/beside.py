"""What is drawn of the lanes beside those of the streams: bins of what is dense, the longest of what is sparse.

Functions
---------
part    the lanes of a source, and what is in them
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.intervals import Int
from perfkit.analysis.window import Window
from perfkit.charts.detail import BINS, SPANS
from perfkit.format import size
from perfkit.selection import Selection
from perfkit.widgets.timeline.sources import Source

BINS_ACROSS, PIXELS = 320, 640
MOST = 500  # intervals of a source drawn one by one
MOST_LANES = 12
DEEPEST = 5  # levels of nested ranges that a lane has room for
TEXTS = ("kind", "name", "call")
MISSING = ("call_start_ns", "call_dur_ns", "id")  # what has no launching call, and reports no click


class Part(NamedTuple):
    """Lanes from the top down, and what `perfkit.charts.detail` draws in them; of how many intervals, in words too."""

    labels: list[str]
    bins: pd.DataFrame
    spans: pd.DataFrame
    amount: int
    counted: str
    said: str = ""


@cache
def empty(columns: tuple[str, ...]) -> pd.DataFrame:
    """Return the frame without rows, which nobody changes."""
    return pd.DataFrame({c: pd.Series(dtype=object if c in TEXTS else "int64") for c in columns})


def part(source: Source, seen: Selection, window: Window) -> Part:
    """Return the lanes of the chosen ranks and GPUs with the most time, and what is in the window."""
    lanes = _busiest(source, seen)
    groups = np.repeat(np.arange(len(source.lanes)), len(source.kinds))
    kept = np.isin(groups, lanes)
    count = int(source.spans.count(window)[kept].sum())
    counted = f"{count:,} {source.nouns[count != 1]}" if count else ""
    place = np.searchsorted(lanes, np.arange(len(source.lanes)))  # of those kept
    labels = source.lanes["label"].take(lanes).tolist()
    spans = empty(SPANS) if count > MOST and not source.is_sparse else _one_by_one(source, window, kept, count)
    if count and spans.empty:
        bins = _binned(source, window, kept).assign(lane=lambda found: place[found["lane"]])
        return Part(labels, bins, spans, count, counted)
    longest = "only the longest is" if len(spans) == 1 else f"the {len(spans):,} longest are"
    said = "" if len(spans) == count else f"Of {counted}, {longest} drawn."
    return Part(labels, empty(BINS), spans.assign(lane=place[spans["lane"]]), count, counted, said)


def _busiest(source: Source, seen: Selection) -> Int:
    """Return the lanes of the chosen ranks and GPUs with the most time, ascending."""
    kept = np.ones(len(source.lanes), bool)
    for column, chosen in (("rank", seen.ranks), ("gpu", seen.gpus)):
        if len(chosen) and column in source.lanes:
            kept &= source.lanes[column].isin(chosen).to_numpy()
    time = source.spans.total.reshape(len(kept), len(source.kinds)).sum(axis=1)
    order = np.argsort(-time, kind="stable")
    return np.sort(order[kept[order]][:MOST_LANES])


def _one_by_one(source: Source, window: Window, kept: NDArray[np.bool_], count: int) -> pd.DataFrame:
    """Return the intervals of the groups kept; of many the longest, of those that are as long as a pixel."""
    at_least = 0 if count <= MOST else (window[1] - window[0]) // PIXELS + 1
    rows, group = source.spans.rows(window, kept, at_least=at_least)
    if len(rows) > MOST:
        longest = np.sort(np.argsort(-source.frame["dur_ns"].to_numpy()[rows], kind="stable")[:MOST])
        rows, group = rows[longest], group[longest]
    found = source.frame.take(rows).reset_index(drop=True)
    lane, number = np.divmod(group, len(source.kinds))
    columns: dict[str, Any] = {"lane": lane, "kind": np.array(source.kinds, object)[number], "name": _names(found)}
    columns |= {column: found[column].to_numpy() for column in ("start_ns", "dur_ns")} | _nested(found, lane)
    nothing = pd.arrays.IntegerArray(np.zeros(len(found), np.int64), np.ones(len(found), bool))
    return pd.DataFrame({**columns, "correlation": -1, "call": None, **dict.fromkeys(MISSING, nothing)})


def _names(found: pd.DataFrame) -> NDArray[np.object_]:
    """Return the name of each row; of copies their direction and size."""
    if "name" in found:
        return found["name"].to_numpy(object)
    sizes = [f"{way} {size(count)}" for way, count in zip(found["direction"], found["bytes"], strict=True)]
    return np.array(sizes, object)


def _nested(found: pd.DataFrame, lane: Int) -> dict[str, Any]:
    """Return the level of each row below the outermost that is seen, and how many levels its lane has."""
    if "depth" not in found or found.empty:
        return {"level": 0, "levels": 1}
    depth, count = found["depth"].to_numpy(np.int64), int(lane.max()) + 1
    outermost, levels = np.full(count, depth.max()), np.zeros(count, np.int64)
    np.minimum.at(outermost, lane, depth)
    level = np.minimum(depth - outermost[lane], DEEPEST - 1)
    np.maximum.at(levels, lane, level + 1)
    return {"level": level, "levels": levels[lane]}


def _binned(source: Source, window: Window, kept: NDArray[np.bool_]) -> pd.DataFrame:
    """Return the busy time of each lane and kind of the groups kept in bins; kinds that overlap count for each."""
    edges = np.linspace(*window, min(BINS_ACROSS, window[1] - window[0]) + 1).astype(np.int64)
    busy = source.spans.busy(edges) * kept[:, None]
    group, at = np.nonzero(busy)
    lane, number = np.divmod(group, len(source.kinds))
    kind, dur = np.array(source.kinds, object)[number], np.diff(edges)
    columns = {"start_ns": edges[at], "dur_ns": dur[at], "busy_frac": busy[group, at] / dur[at]}
    return pd.DataFrame({"lane": lane, "kind": kind, **columns})
