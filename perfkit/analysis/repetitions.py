"""What does a rank repeat on its GPUs, from when to when, and which repetitions are typical?

Repetitions are found in one of four ways, the first that works for a rank:

1. profiler_step and 2. nvtx: steps of `perfkit.analysis.steps`, from ranges on the CPU.
3. module: the calls of one outermost PyTorch module, from the start of one to the start of the next.
4. kernels: the sequence of kernels, copies and memsets of one GPU that repeats.

The first three are times of the CPU, which may be far ahead. Their edges are moved to the GPU
(`on_device`): to the end of the work that was launched before, at latest to the start of the work
that is launched after. What repeats inside one call of an operator or one pass through the model
(`perfkit.analysis.layers`) is a layer, and no repetition.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis import layers, steps
from perfkit.analysis.causes import covered, started_by
from perfkit.analysis.grouping import numbered
from perfkit.analysis.intervals import Bool, Int, Window, ends
from perfkit.format import elided
from perfkit.tables import KERNELS, PYTHON_CALLS, RANGES

HOW = {"profiler step": "profiler_step", "nvtx": "nvtx", "kernel sequence": "kernels"}
ONE_FORWARD = "one forward pass"
SHOWN, LONGEST_NAME = 3, 60  # operations that a description names, and characters of each
MOST = 0.9  # of the repetitions, or of the span: nearly all (convention)
FEWEST = 3  # calls of a module that are repetitions
_LAST, _FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


class Repetitions(NamedTuple):
    """The repetitions of a rank on its GPUs, by start, ns, and which are typical; none where nothing repeats.

    `name` is the range or module, or lists the operations that repeat. Where `how` is known without
    repetitions, the recording is one call of `name`, and what repeats inside are its layers.
    """

    start: Int
    end: Int
    steady: Bool
    how: str
    name: str


class Work(NamedTuple):
    """The operations of a rank in the order of their starts: a frame like KERNELS, and times in ns.

    `tells`: whether it tells when the GPUs reach a step: it runs on the stream that computes
    longest, and its launch is known (all are taken to start with their launch where no launch is
    known). `span`: the time that is measured.
    """

    frame: pd.DataFrame
    start: Int
    end: Int
    launched: Int
    is_kernel: Bool
    tells: Bool
    span: Window


def operations(kernels: pd.DataFrame, copies: pd.DataFrame) -> pd.DataFrame:
    """Return KERNELS with a row for each copy and memset too, by rank and start, and the column `is_kernel`."""
    labels = copies["direction"].cat.rename_categories(_copy_name)
    columns = ["rank", "gpu", "process", "stream", "start_ns", "dur_ns", "correlation"]
    copied = pd.DataFrame({column: copies[column] for column in columns})
    launched = kernels.copy(deep=False)
    for column in ("name", "full_name"):
        names = kernels[column].cat.categories.union(labels.cat.categories, sort=False)
        launched[column] = kernels[column].cat.set_categories(names)
        copied[column] = labels.cat.set_categories(names)
    copied["family"] = pd.Categorical([None] * len(copies), kernels["family"].cat.categories)
    copied["in_graph"] = False
    for column in ("grid_blocks", "block_threads", "registers", "shared_bytes"):
        copied[column] = pd.array([pd.NA] * len(copies), "Int64")
    launched["is_kernel"] = True
    copied["is_kernel"] = False
    joined = pd.concat([launched, copied], ignore_index=True)
    return joined.sort_values(
        ["rank", "start_ns", "gpu", "stream"], kind="stable", ignore_index=True
    )


def _copy_name(direction: object) -> str:
    return "memset" if direction == "memset" else f"copy {direction}"


def work(frame: pd.DataFrame, api_calls: pd.DataFrame, stepped: Window | None = None) -> Work:
    """Return the `operations` of one rank with the times of their launches: of their own start where none is known.

    `stepped`: the time of the rank's steps, where that and not the time of the operations is measured.
    """
    start, end = ends(frame)
    launched = start.copy()
    call = started_by(frame, api_calls)
    known = call >= 0
    launched[known] = np.minimum(api_calls["start_ns"].to_numpy()[call[known]], start[known])
    is_kernel = frame["is_kernel"].to_numpy()
    tells = _main(frame, is_kernel)
    if (tells & known).any():
        tells &= known
    span = stepped or (int(start[0]), int(end.max()))
    return Work(frame, start, end, launched, is_kernel, tells, span)


def _main(frame: pd.DataFrame, is_kernel: Bool) -> Bool:
    """Return which operations run on the stream with most time in kernels that compute; all if none does."""
    _, stream = numbered(frame, ["gpu", "process", "stream"])
    computes = is_kernel & (frame["family"] != "communication").to_numpy()
    time = np.bincount(stream, frame["dur_ns"].to_numpy() * computes)
    return stream == time.argmax() if time.any() else np.ones(len(frame), bool)


def on_device(of: Work, time: Int) -> Int:
    """Return when the GPUs reach what the CPU does at each time, ns, ascending if the times are.

    That is the time itself, or later the end of the last operation launched before it, but never
    after the start of the first operation that is launched at or after it; only operations count
    that tell it.
    """
    launched, start, end = of.launched[of.tells], of.start[of.tells], of.end[of.tells]
    order = np.argsort(launched, kind="stable")
    latest = np.r_[_FIRST, np.maximum.accumulate(end[order])]
    earliest = np.r_[np.minimum.accumulate(start[order][::-1])[::-1], _LAST]
    before = np.searchsorted(launched[order], time, side="left")
    moved: Int = np.minimum(np.maximum(time, latest[before]), earliest[before])
    return moved


def find(
    of: Work, ranges: pd.DataFrame, ops: pd.DataFrame, python_calls: pd.DataFrame
) -> Repetitions:
    """Return the repetitions of one rank, whose tables these are."""
    kernels = of.frame[of.is_kernel]
    modules = _outermost(RANGES.empty(), python_calls)
    marked = steps.STEPS.empty()
    if len(ranges):
        # Ranges hold launches: the kernels may run long after.
        launches = kernels.assign(start_ns=of.launched[of.is_kernel])
        marked = steps.detect(ranges, launches, python_calls=python_calls)
    if len(marked) and marked["how"].iloc[0] != "kernel sequence":
        return _moved(of, marked, HOW[str(marked["how"].iloc[0])])
    called = _called(of, modules)
    if len(called):
        return _moved(of, called, "module")
    return _without_layers(of, _repeated(of, kernels), modules, ranges, ops)


def _repeated(of: Work, kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the stretches of operations that repeat, or of kernels alone where these cover more of the span.

    Copies may come and go between kernels that repeat. Copies that repeat without a kernel are one
    transfer in pieces.
    """
    first, last = of.span
    of_all = _shortest(of.frame)
    low, high = ends(of_all)
    launches = np.sort(of.start[of.is_kernel])
    with_kernel = np.searchsorted(launches, high) > np.searchsorted(launches, low)
    covered = int(of_all.loc[of_all["steady"], "dur_ns"].sum())
    if len(of_all) and with_kernel.mean() < MOST:
        of_all, covered = of_all.head(0), 0
    if covered >= MOST * (last - first):
        return of_all
    of_kernels = _shortest(kernels)
    is_more = MOST * of_kernels.loc[of_kernels["steady"], "dur_ns"].sum() > covered
    return of_kernels if is_more else of_all


def _shortest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the stretches of operations that repeat, without one that runs in every n-th of them alone.

    An operation that alone tells the n-th repetition from the others makes no longer repetition of
    n.
    """
    found = steps.detect(RANGES.empty(), frame)
    if found.empty:
        return found
    start, end = ends(found)
    inside = frame["start_ns"].between(int(start[0]), int(end[-1]), "left").to_numpy()
    code = frame["full_name"].cat.codes.to_numpy()
    codes, count = np.unique(code[inside], return_counts=True)
    once = codes[count <= len(found) + 1]
    if len(once) != 1 or len(codes) == 1:
        return found
    shorter = steps.detect(RANGES.empty(), frame[code != once[0]])
    return shorter if len(shorter) >= 2 * len(found) else found


def _outermost(ranges: pd.DataFrame, python_calls: pd.DataFrame) -> pd.DataFrame:
    """Return the ranges, or the calls of modules, that are one pass (`layers.passes`), with their names."""
    modules = layers.modules(python_calls)
    given = modules if len(modules) else ranges
    keys = ["process", "thread", "start_ns", "dur_ns"]
    named = given[[*keys, "name"]].drop_duplicates(keys)
    return layers.passes(ranges, modules).merge(named, on=keys)


def _called(of: Work, modules: pd.DataFrame) -> pd.DataFrame:
    """Return the calls of the outermost module that takes most time, as steps; empty if they start too little work."""
    nothing = steps.STEPS.empty()
    if modules.empty:
        return nothing
    names = modules["name"].astype(str)
    most = modules["dur_ns"].groupby(names).sum().idxmax()
    mine = modules[names == most].sort_values("start_ns", kind="stable")
    if len(mine) < FEWEST:
        return nothing
    start = mine["start_ns"].to_numpy()
    period = np.diff(start)
    # Nothing shows when the last one's step ends: it gets the usual length.
    dur = np.r_[period, max(int(np.median(period)), int(mine["dur_ns"].iloc[-1]))]
    inside = (of.launched >= start[0]) & (of.launched < start[-1] + dur[-1])
    if 2 * inside.sum() <= len(inside):
        return nothing
    return pd.DataFrame({"start_ns": start, "dur_ns": dur, "name": most})


def _moved(of: Work, marked: pd.DataFrame, how: str) -> Repetitions:
    """Return steps of the CPU on the GPUs, cut to the span of their operations, without steps outside of it.

    The first step begins before its first operation: the length of all of it tells whether it is
    typical.
    """
    begin, finish = (on_device(of, time) for time in ends(marked))
    first, last = of.span
    start, end = np.clip(begin, first, last), np.clip(finish, first, last)
    there = end > start
    name = str(marked["name"].iloc[0])
    start, end = start[there], end[there]
    lasted = np.minimum(finish, last)[there] - begin[there]
    lasted -= covered(steps.outlasting(of.start, of.end), start, end)
    spans = pd.DataFrame({"start_ns": begin[there], "dur_ns": lasted})
    spans = spans.assign(rank=0, process=0, thread=0, name=name, domain="", kind="step", depth=0)
    again = steps.detect(RANGES.make(spans), KERNELS.empty())
    return Repetitions(start, end, _typical(again), how, name)


def _typical(found: pd.DataFrame) -> Bool:
    """Return which steps are typical: all but first ones that last more than `steps.SLOW` times as long as the steady.

    The last one is complete, too: it only seems short where nothing shows when the next one would
    have begun.
    """
    is_steady = found["steady"].to_numpy()
    if not is_steady.any():
        return np.asarray(is_steady, bool)
    dur = found["dur_ns"].to_numpy()
    is_slow = dur > steps.SLOW * np.median(dur[is_steady])
    slow = np.flatnonzero(is_slow[: int(is_steady.argmax())])
    first = int(slow[-1]) + 1 if len(slow) else 0
    return np.arange(len(dur)) >= first


def _without_layers(
    of: Work, repeated: pd.DataFrame, modules: pd.DataFrame, ranges: pd.DataFrame, ops: pd.DataFrame
) -> Repetitions:
    """Return repeated operations as repetitions, or the pass through the model whose layers they are."""
    start, end = ends(repeated)
    nothing = Repetitions(start[:0], end[:0], np.zeros(0, bool), "none", "")
    if repeated.empty:
        return nothing
    begun = of.launched[np.searchsorted(of.start, start)]
    passes = _outermost(ranges, PYTHON_CALLS.empty())
    for how, calls in (("module", modules), ("module", ops[ops["parent"] == -1]), ("nvtx", passes)):
        if layers.are_layers(begun, calls):
            longest = calls.iloc[int(calls["dur_ns"].to_numpy().argmax())]
            return nothing._replace(how=how, name=str(longest["name"]))
    if layers.is_one_forward(begun, ranges):
        return nothing._replace(how="nvtx", name=ONE_FORWARD)
    steady = _typical(repeated)
    usual = int(np.flatnonzero(steady)[0]) if steady.any() else 0
    return Repetitions(
        start, end, steady, "kernels", _described(of, int(start[usual]), int(end[usual]))
    )


def _described(of: Work, first: int, last: int) -> str:
    """Return the names of the operations that start in a stretch, the first few of them."""
    names = of.frame["name"][(of.start >= first) & (of.start < last)].astype(str)
    shown = ", ".join(elided(name, LONGEST_NAME) for name in names.iloc[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown
