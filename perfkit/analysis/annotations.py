"""Which of the ranges that a person wrote into the program are its iterations?

Conventions
-----------
Ranges are told apart by their *label*: the name up to the first ", " (frameworks append sequence
numbers and sizes after it) and without a number at its end when that number counts ("Batch 7"; but
"layer_7" stays itself when every iteration has a layer_7). Ranges of one process, thread, domain and
depth form a *level*; depth counts only the ranges considered, so that a first step inside a range
"warm-up" is on the level of the others. Labels that say epoch and names that a framework writes for
every operator are not considered.

Functions
---------
iterations      the iterations of one rank, of the first level that has any
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfkit.analysis.calls import where
from perfkit.analysis.intervals import Int, total, union
from perfkit.analysis.period import bounds, repeats
from perfkit.analysis.statistics import numbered

LEVEL = ["process", "thread", "domain", "depth"]

# A range with a name of the first list is an iteration, one with a name of the second a part of one.
ITERATION = re.compile(r"(?<![a-z])(?:time_?step|step|iter|iteration|(?:micro_?)?batch|token|decode)s?(?![a-z])", re.I)
PART = re.compile(
    r"(?<![a-z])(?:forward|fwd|backward|bwd|optimi[sz]er|loss|prefill|data[ _-]?load(?:ing|er))(?![a-z])", re.I
)
# "aten::mm", "Optimizer.step#Adam.step", "{'mod': ...", "epoch 3"
NEVER = re.compile(r"::|#|\{|epoch", re.I)
_NUMBER = re.compile(r"[\s_:=(\[-]*\d+(?:\s*/\s*\d+)?[)\]]?$")


def iterations(ranges: pd.DataFrame, launched: Int) -> pd.DataFrame:
    """Return the iterations that named ranges show, or no row.

    Levels whose labels say iteration or part of one come first, then the others; among them the outermost,
    then the one whose ranges cover most time. Its labels must repeat (`perfkit.analysis.period`), and more than
    half of the kernels must start between the first and the last iteration. Labels that do not tell must besides
    repeat without long breaks, with kernels in most repetitions: a function called now and then is no iteration.

    Parameters
    ----------
    ranges
        RANGES of one rank; may be empty.
    launched
        int64 ns, starts of the rank's kernels, any order; may be empty.

    Returns
    -------
    pandas.DataFrame
        By start: `start_ns`, `dur_ns` int64; `name` object, the range's name up to the first ", ".
    """
    spans = ranges[ranges["kind"] != "mark"]
    spans = spans.assign(label=_labels(spans["name"]))
    for wanted in (_telling, _written):
        for level in _levels(spans[where(spans["label"], wanted)]):
            found = _of_level(level)
            if len(found) and _holds(found, launched) and (wanted is _telling or _works(found, launched)):
                return found
    return pd.DataFrame({"start_ns": np.zeros(0, np.int64), "dur_ns": np.zeros(0, np.int64), "name": []})


def _telling(label: str) -> bool:
    return _written(label) and bool(ITERATION.search(label) or PART.search(label))


def _written(label: str) -> bool:
    return not NEVER.search(label)


def _labels(name: pd.Series) -> pd.Series:
    """Return the label of each range (category)."""
    short, shorts = pd.factorize(np.array([_short(n) for n in name.cat.categories], object))
    stem, stems = pd.factorize(np.array([_NUMBER.sub("", s) for s in shorts], object))
    short = short[name.cat.codes.to_numpy()]
    present = np.bincount(short, minlength=len(shorts))
    # A number that counts rarely comes twice; the label of a part comes in every iteration.
    counts = 2 * np.bincount(stem, present > 0, len(stems)) > np.bincount(stem, present, len(stems))
    counts |= np.array([bool(ITERATION.search(s)) for s in stems], bool)
    label, labels = pd.factorize(np.where(counts[stem], stems[stem], shorts))
    return pd.Series(pd.Categorical.from_codes(label[short], pd.Index(labels)), index=name.index)


def _short(name: object) -> str:
    return str(name).partition(", ")[0]


def _levels(spans: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the ranges of each level, by start; levels by depth, then by falling covered time."""
    spans = spans[spans["dur_ns"] > 0]
    levels, number = numbered(spans.assign(depth=_depth(spans)), LEVEL)
    start = spans["start_ns"].to_numpy()
    covered = total(union(start, start + spans["dur_ns"].to_numpy(), number), len(levels))
    order = np.argsort(number, kind="stable")
    bound = np.r_[0, np.cumsum(np.bincount(number, minlength=len(levels)))]
    for level in np.lexsort((-covered, levels["depth"].to_numpy())):
        yield spans.iloc[order[bound[level] : bound[level + 1]]].sort_values("start_ns", kind="stable")


def _depth(spans: pd.DataFrame) -> Int:
    """Return how many of these ranges enclose each: the others, which were left out, do not count."""
    _, thread = numbered(spans, LEVEL[:-1])
    start = spans["start_ns"].to_numpy()
    end = start + spans["dur_ns"].to_numpy()
    offset = thread * (int(end.max(initial=0)) - int(start.min(initial=0)) + 1)
    order = np.lexsort((-end, start + offset))
    depth = np.zeros(len(start), np.int64)
    # Open at a start: those that began before it, without those that had ended.
    depth[order] = np.arange(len(start)) - np.searchsorted(np.sort(end + offset), (start + offset)[order], side="right")
    return depth


def _of_level(level: pd.DataFrame) -> pd.DataFrame:
    """Return the stretches of a level that repeat."""
    first, stop = repeats(level["label"].cat.codes.to_numpy().astype(np.int64))
    start = level["start_ns"].to_numpy()
    end = start + level["dur_ns"].to_numpy()
    begin, finish = bounds(start, end, first, stop)
    labels = level["label"].iloc[first]
    if len(first) and (stop - first == 1).all() and where(labels, ITERATION.search).all():
        finish = end[first]  # the range is the iteration, not what follows it
    name = [_short(n) for n in level["name"].iloc[first]]
    return pd.DataFrame({"start_ns": begin, "dur_ns": finish - begin, "name": name})


def _holds(found: pd.DataFrame, launched: Int) -> bool:
    """Tell whether most kernels start between the first and the last iteration."""
    first, last = _extent(found)
    return not len(launched) or bool(((launched >= first) & (launched < last)).mean() > 0.5)


def _works(found: pd.DataFrame, launched: Int) -> bool:
    """Tell whether the iterations fill most of the time from first to last, and most of them start kernels."""
    first, last = _extent(found)
    start = found["start_ns"].to_numpy()
    edges = np.searchsorted(np.sort(launched), [start, start + found["dur_ns"].to_numpy()])
    busy = not len(launched) or bool(2 * (edges[1] > edges[0]).sum() > len(found))
    return busy and bool(2 * found["dur_ns"].sum() > last - first)


def _extent(found: pd.DataFrame) -> tuple[int, int]:
    return int(found["start_ns"].iloc[0]), int(found["start_ns"].iloc[-1] + found["dur_ns"].iloc[-1])
