"""Did two runs do the same work, and how long did they take for equal parts of it?

Two runs did the same work if they launched the same kernels in the same proportions, however long
each was recorded. A kernel is a name with its grid. Its work is the usual duration of that kernel
in both runs, so that a slow launch is no more work than a fast one. The work of all launches of a
rank, in the order of their starts, is cut into units of equal work. A unit lasts from its first
launch to the first launch of the next unit: what the GPU waits in between counts. Work of one unit
differs from that of another by one kernel at most.

Where both runs launch the same kernels in the same order, for the whole time or from some launch
on, the units are cut from that common stretch at the same launches: the units are then pairs, and
what differs from unit to unit is no noise.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from perfkit.analysis.compare.resampling import FEWEST
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Bool, Float, Int
from perfkit.analysis.steps import STEPS, settled
from perfkit.tables import KERNELS

HOW = "equal work"
WINDOW = 16  # launches in a row that tell where in another run they are
ALIKE = 0.9  # share of the work that two runs must have in common (convention)
# Units of a rank at most, launches of a unit at least, and how much more work a unit holds than its
# longest kernel.
MOST, LAUNCHES, LONGER = 20, 8, 4
KEYS = ["full_name", "grid_blocks", "block_threads"]


class Units(NamedTuple):
    """STEPS of each repeat of both sides, none if there are no units, and whether the units are pairs."""

    before: list[pd.DataFrame]
    after: list[pd.DataFrame]
    are_pairs: bool


class _Launches(NamedTuple):
    """The launches of the busiest GPU of a rank, by start: number of the kernel, start and duration, ns."""

    rank: int
    kernel: Int
    start: Int
    dur: Int


def alike(before: Sequence[pd.DataFrame], after: Sequence[pd.DataFrame]) -> float:
    """Return the share of the work that both sides launched in the same proportions, 0..1; NaN without kernels.

    Each side has one KERNELS for each repeat. The share is the sum over all kernels of the smaller
    of both shares of the work: 1 for the same kernels in the same proportions, 0 for no kernel in
    common.
    """
    old, new = _sides(before, after)
    return _alike(old, new, _cost(old, new))


def units(before: Sequence[pd.DataFrame], after: Sequence[pd.DataFrame]) -> Units:
    """Return units of equal work: STEPS of each repeat, whose `how` is "equal work".

    There is none where the sides have less than nine tenths of their work in common, or where a
    repeat makes fewer than six units. Slow first units are not steady, as slow first steps are not
    (`analysis.steps.detect`).
    """
    old, new = _sides(before, after)
    aligned = _aligned([*old, *new])
    repeats = aligned or [*old, *new]
    cost = _cost(repeats[: len(old)], repeats[len(old) :])
    share = _alike(repeats[: len(old)], repeats[len(old) :], cost)
    length = _length(repeats, cost)
    if not share >= ALIKE or not length > 0:
        return Units([], [], are_pairs=False)
    found = [_steps(repeat, cost, length) for repeat in repeats]
    found = _paired(found) if aligned else found
    if min(int(frame["steady"].sum()) for frame in found) < FEWEST:
        return Units([], [], are_pairs=False)
    return Units(found[: len(old)], found[len(old) :], are_pairs=bool(aligned))


def _aligned(repeats: list[list[_Launches]]) -> list[list[_Launches]]:
    """Return the launches that all repeats make in the same order; nothing if they do not."""
    ranks = [[of.rank for of in repeat] for repeat in repeats]
    if not ranks or any(of != ranks[0] for of in ranks):
        return []
    aligned = [_common([repeat[place] for repeat in repeats]) for place in range(len(ranks[0]))]
    if not all(aligned):
        return []
    return [[of_rank[number] for of_rank in aligned] for number in range(len(repeats))]


def _common(runs: list[_Launches]) -> list[_Launches]:
    """Return the stretch of each run of a rank that has the same kernels at the same places; nothing if too short."""
    offsets = [_offset(runs[0].kernel, run.kernel) for run in runs]
    first = max(-offset for offset in offsets)
    last = min(len(run.kernel) - offset for run, offset in zip(runs, offsets, strict=True))
    if 2 * (last - first) < min(len(run.kernel) for run in runs):
        return []
    cut = [
        _between(run, first + offset, last + offset)
        for run, offset in zip(runs, offsets, strict=True)
    ]
    same = [(run.kernel == cut[0].kernel).mean() for run in cut]
    return cut if min(same) >= ALIKE else []


def _between(run: _Launches, first: int, last: int) -> _Launches:
    return run._replace(
        kernel=run.kernel[first:last], start=run.start[first:last], dur=run.dur[first:last]
    )


def _offset(one: Int, other: Int) -> int:
    """Return by how many launches the same sequence comes later in the other run; 0 where nothing tells it."""
    places = [_once(one), _once(other)]
    _, mine, theirs = np.intersect1d(places[0].index, places[1].index, return_indices=True)
    if not len(mine):
        return 0
    apart, count = np.unique(
        places[1].to_numpy()[theirs] - places[0].to_numpy()[mine], return_counts=True
    )
    return int(apart[count.argmax()])


def _once(kernel: Int) -> pd.Series:
    """Return the place of each window of launches that occurs once, by a number for its content."""
    if len(kernel) < WINDOW:
        return pd.Series(dtype=np.int64)
    powers = np.power(np.uint64(1_000_003), np.arange(WINDOW, dtype=np.uint64))
    content = np.convolve((kernel + 1).astype(np.uint64), powers, mode="valid")
    places = pd.Series(np.arange(len(content)), index=content)
    return places[~places.index.duplicated(keep=False)]


def _paired(found: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return units of which each is steady in all repeats or in none; units that not all have are left out."""
    keys = ["rank", "step"]
    steady = [frame.set_index(keys)["steady"] for frame in found]
    every = pd.concat(steady, axis=1, join="inner").all(axis=1)
    chosen = every.rename("in_all").reset_index()
    frames = [frame.merge(chosen, on=keys) for frame in found]
    return [
        STEPS.make(frame.assign(steady=frame["in_all"]).drop(columns="in_all")) for frame in frames
    ]


def _sides(
    before: Sequence[pd.DataFrame], after: Sequence[pd.DataFrame]
) -> tuple[list[list[_Launches]], list[list[_Launches]]]:
    """Return the launches of each rank of each repeat; kernels have one number on both sides."""
    frames = [KERNELS.check(frame)[KEYS] for frame in (*before, *after)]
    every = pd.concat([frame[KEYS[1:]] for frame in frames], ignore_index=True)
    every["full_name"] = union_categoricals([frame["full_name"] for frame in frames])
    _, number = numbered(every, KEYS)
    bounds = np.cumsum([0, *map(len, frames)])
    repeats = [
        _of_ranks(frame, number[first:last])
        for frame, (first, last) in zip((*before, *after), pairwise(bounds), strict=True)
    ]
    return repeats[: len(before)], repeats[len(before) :]


def _of_ranks(kernels: pd.DataFrame, number: Int) -> list[_Launches]:
    """Return the launches of the GPU with most kernels of each rank."""
    found = []
    for rank in np.unique(kernels["rank"]):
        mine = np.flatnonzero(kernels["rank"].to_numpy() == rank)
        _, device = numbered(kernels.iloc[mine], ["gpu", "process"])
        mine = mine[device == np.bincount(device).argmax()]
        start = kernels["start_ns"].to_numpy()[mine]
        order = np.argsort(start, kind="stable")
        dur = kernels["dur_ns"].to_numpy()[mine]
        found.append(_Launches(int(rank), number[mine][order], start[order], dur[order]))
    return found


def _cost(old: list[list[_Launches]], new: list[list[_Launches]]) -> Float:
    """Return the work of each kernel by its number: the mean of its medians before and after, ns."""
    medians = []
    for side in (old, new):
        launches = [rank for repeat in side for rank in repeat]
        kernel = np.concatenate([of.kernel for of in launches] or [np.zeros(0, np.int64)])
        dur = np.concatenate([of.dur for of in launches] or [np.zeros(0, np.int64)])
        medians.append(pd.Series(dur).groupby(kernel).median())
    means = pd.concat(medians, axis=1).mean(axis=1)
    return (
        means.reindex(range(1 + int(means.index.max())) if len(means) else [])
        .fillna(0.0)
        .to_numpy()
    )


def _alike(old: list[list[_Launches]], new: list[list[_Launches]], cost: Float) -> float:
    shares = []
    for side in (old, new):
        counts = np.zeros(len(cost))
        for repeat in side:
            for rank in repeat:
                counts += np.bincount(rank.kernel, minlength=len(cost))
        work = counts * cost
        shares.append(work / work.sum() if work.sum() else np.full(len(cost), np.nan))
    return float(np.minimum(*shares).sum()) if len(cost) else np.nan


def _length(repeats: list[list[_Launches]], cost: Float) -> float:
    """Return the work of a unit, ns: that of the rank with the least work, over the units that it can make."""
    ranks = [rank for repeat in repeats for rank in repeat]
    if not ranks:
        return 0.0
    fewest = min(len(rank.kernel) for rank in ranks)
    least = min(float(cost[rank.kernel].sum()) for rank in ranks)
    count = min(MOST, fewest // LAUNCHES, int(least / (LONGER * cost.max())) if cost.max() else 0)
    return least / count if count else 0.0


def _steps(repeat: list[_Launches], cost: Float, length: float) -> pd.DataFrame:
    """Return the units of each rank as STEPS: those whose end the recording shows, at the start of the next."""
    frames = []
    for of in repeat:
        done = np.cumsum(cost[of.kernel])
        unit = ((done - cost[of.kernel]) // length).astype(np.int64)
        edges = of.start[np.flatnonzero(np.diff(unit, prepend=-1))]
        dur = np.diff(edges)
        times = {
            "rank": of.rank,
            "step": np.arange(len(dur)),
            "start_ns": edges[:-1],
            "dur_ns": dur,
        }
        frames.append(pd.DataFrame({**times, "name": HOW, "how": HOW, "steady": _steady(dur)}))
    return STEPS.make(pd.concat(frames, ignore_index=True)) if frames else STEPS.empty()


def _steady(dur: Int) -> Bool:
    """Return which units are typical: after slow first ones, and after the unit in which the warm-up ends."""
    steady = settled(dur)
    slow = int(steady.argmax()) if len(steady) else 0
    if slow:
        steady[slow] = False
    return steady
