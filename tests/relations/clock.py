"""Changes of time: time put in between, moved, and stretched."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd
from relations.recordings import READ, STARTED, DoesNotApply, Int, Recording, operations

Clock = Callable[[Int], Int]


def retimed(recording: Recording, start: Clock, end: Clock) -> Recording:
    """Return the recording with each start and end where these functions put it; no duration falls below 0."""
    changes = {name: lambda frame: _started(frame, start, end) for name in STARTED}
    changes |= {name: lambda frame: _read(frame, start) for name in READ}
    return recording.changed(changes)


def _started(frame: pd.DataFrame, start: Clock, end: Clock) -> pd.DataFrame:
    is_timed = frame["start_ns"].notna() & frame["dur_ns"].notna()
    timed = frame[is_timed]
    before = timed["start_ns"].to_numpy(np.int64)
    dur = timed["dur_ns"].to_numpy(np.int64)
    began = start(before)
    lasts = np.where(dur > 0, np.maximum(end(before + dur) - began, 0), 0)
    result = frame.copy()
    result.loc[is_timed, "start_ns"] = began
    result.loc[is_timed, "dur_ns"] = lasts
    if "self_ns" in frame:
        result["self_ns"] = _own(frame, pd.Series(lasts - dur, frame.index))
    return result


def _own(ops: pd.DataFrame, longer: pd.Series) -> pd.Series:
    """Return how long operators take without their children, if each lasts this much longer."""
    keys = pd.MultiIndex.from_frame(ops[["rank", "op"]])
    of_children = longer.groupby([ops["rank"], ops["parent"]]).sum()
    inside = of_children.reindex(keys, fill_value=0).to_numpy()
    return (ops["self_ns"] + longer - inside).clip(lower=0)


def _read(frame: pd.DataFrame, start: Clock) -> pd.DataFrame:
    return frame.assign(time_ns=start(frame["time_ns"].to_numpy(np.int64)))


def inserted(recording: Recording, places: Int, lengths: Int) -> Recording:
    """Return the recording with time put in at some places, ns.

    What begins at a place or later moves; what is under way lasts longer; what ends there stays.
    """
    order = np.argsort(places, kind="stable")
    at = places[order]
    sums = np.concatenate([[0], np.cumsum(lengths[order])]).astype(np.int64)

    def start(time: Int) -> Int:
        return time + sums[np.searchsorted(at, time, "right")]

    def end(time: Int) -> Int:
        return time + sums[np.searchsorted(at, time, "left")]

    return retimed(recording, start, end).lengthened(int(sums[-1]))


def stretched(recording: Recording, spans: list[tuple[int, int]], factor: int = 2) -> Recording:
    """Return the recording with all time in these disjoint spans `factor` times as long."""
    begins = np.array([begin for begin, _ in spans], np.int64)
    ends = np.array([end for _, end in spans], np.int64)
    sums = np.concatenate([[0], np.cumsum(ends - begins)]).astype(np.int64)

    def moved(time: Int) -> Int:
        done = np.searchsorted(ends, time, "right")  # spans that ended before
        now = np.minimum(done, len(spans) - 1)
        inside = np.where(done < len(spans), np.maximum(time - begins[now], 0), 0)
        return time + (factor - 1) * (sums[done] + inside)

    return retimed(recording, moved, moved).lengthened(int((factor - 1) * sums[-1]))


def busy(recording: Recording, *, launched: bool = False) -> list[tuple[int, int]]:
    """Return the disjoint spans in which some GPU works; with `launched` from the call of each operation on."""
    work = operations(recording)
    begins = work["launched_ns" if launched else "start_ns"]
    pairs = sorted(zip(begins, work["start_ns"] + work["dur_ns"], strict=True))
    spans = [pairs[0]]
    for begin, end in pairs[1:]:
        if begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((begin, end))
    return [(int(begin), int(end)) for begin, end in spans]


def gaps(recording: Recording) -> list[tuple[int, int]]:
    """Return the spans between operations in which no GPU works."""
    spans = busy(recording)
    return [(before[1], after[0]) for before, after in pairwise(spans)]


def quiet(recording: Recording) -> list[int]:
    """Return times at which no operation runs or waits: each is when the next one is launched."""
    times = [begin for begin, _ in busy(recording, launched=True)[1:]]
    if not times:
        raise DoesNotApply("an operation runs or waits all the time")
    return times


def later(recording: Recording, by: int) -> Recording:
    """Return the recording with all times moved by a constant, ns."""
    return retimed(recording, lambda time: time + by, lambda time: time + by).lengthened(by)
