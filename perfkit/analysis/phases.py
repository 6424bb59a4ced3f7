"""Which part of a recording is start-up, which is the loop, and which is a pause that happened once?

The span of a rank lasts from the first to the last operation of its GPUs, or as long as its marked
steps where these last clearly longer (`perfkit.analysis.ranks.lengthened`). Its phases cover that
exactly once:

start_up  everything before the first typical repetition, slow first repetitions too: paid once per process
loop      the typical repetitions (`perfkit.analysis.repetitions`); steps of two lengths are rows of two kinds. Work
          with other kernels before, between or after them is one repetition of another kind: a prefill before decoding
pause     a stretch without work that is no part of each repetition: alone it makes half of the idle time, longer
          pauses left out, or the program saves its state in it (`perfkit.analysis.checkpoints`)
end       what follows the last repetition
whole     all of a recording without a loop, but for its pauses
"""

from collections.abc import Hashable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis import causes, checkpoints, completeness, repetitions, steps
from perfkit.analysis.intervals import Int, Intervals, Window, ends, intersect, total, union
from perfkit.analysis.repetitions import Repetitions, Work
from perfkit.format import duration
from perfkit.schema import Column, Table
from perfkit.tables import (
    API_CALLS,
    COPIES,
    DUR,
    KERNELS,
    OPS,
    OS_CALLS,
    PYTHON_CALLS,
    RANGES,
    RANK,
    START,
)

PHASES = Table(
    "PHASES",
    "a part of the time of a rank's GPUs",
    (
        *(RANK, Column("phase", "category", "start_up, loop, pause, end or whole"), START, DUR),
        Column(
            "repetitions",
            "Int64",
            "repetitions that begin in it: of a loop, or slow first ones; NA if none",
        ),
        Column("kind", "category", "kind of repetition where there are several; missing if not"),
        Column("how", "category", "what shows it: nvtx, profiler_step, module, kernels or none"),
        Column(
            "name",
            "category",
            "range, module, or operations that repeat; what a pause or a start-up holds",
        ),
        Column("busy_ns", "int64", "time in which a GPU worked, summed over the rank's GPUs, ns"),
    ),
    ("rank", "start_ns"),
)
# Conventions: the share of a part from which on a pause is told, the share of the gaps or
# repetitions that may be pauses, and how many repetitions tell what is part of each.
NOTABLE, FEW_GAPS, FEWEST = 0.03, 0.1, 3
# Two lengths of steps differ by this factor, and each has this share of the steps, at least two.
APART, SHARE_OF_KIND = 1.5, 0.05
# Other work has this share of the kernel time; half of its time is busy, and half of that in
# kernels the loop has not.
WORK, HALF, ALIKE = 0.1, 0.5, 0.9
OTHER, CHECKPOINT = "other kernels", "checkpoint"


class _Part(NamedTuple):
    """A row of PHASES without its rank and its busy time."""

    phase: str
    start: int
    end: int
    repetitions: int | None = None
    kind: str | None = None
    how: str = "none"
    name: str | None = None


def phases(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    *,
    ranges: pd.DataFrame,
    ops: pd.DataFrame,
    python_calls: pd.DataFrame,
    api_calls: pd.DataFrame,
    os_calls: pd.DataFrame,
    collecting: pd.DataFrame | None = None,
    stepped: Mapping[int, Window] = MappingProxyType({}),
) -> pd.DataFrame:
    """Return the phases of each rank that has operations of a GPU: table `PHASES`.

    The lengths of a rank's phases add up to its span exactly, and each rank is judged by its own
    tables alone. `collecting`: STRETCHES in which the profiler itself worked and the GPU did not;
    they make no step a longer one. `stepped`: the time of ranks whose steps last clearly longer
    than the work of their GPUs.
    """
    marked = steps.of_program(RANGES.check(ranges), kernels, api_calls)
    tables = [marked, OPS.check(ops), PYTHON_CALLS.check(python_calls)]
    tables += [API_CALLS.check(api_calls), OS_CALLS.check(os_calls)]
    tables += [KERNELS.check(kernels), COPIES.check(copies)]
    tables.append(completeness.STRETCHES.given(collecting))
    rows: list[dict[Hashable, object]] = []
    for rank in sorted({*kernels["rank"].unique(), *copies["rank"].unique()}):
        spans, operators, functions, calls, system, launched, copied, collector = (
            _of_rank(table, rank) for table in tables
        )
        operations = repetitions.operations(launched, copied)
        of = repetitions.work(operations, calls, stepped.get(int(rank)))
        found = repetitions.find(of, spans, operators, functions)
        saved = _saved(found, rank, launched, copied, spans, functions, calls, system)
        rows += _rows(of, int(rank), list(_parts(of, found, saved, collector)))
    table = pd.DataFrame(rows, columns=PHASES.column_names)
    return PHASES.make(table.astype({"repetitions": "Int64"})) if rows else PHASES.empty()


def _of_rank(table: pd.DataFrame, rank: int) -> pd.DataFrame:
    """Return the rows of a rank; the table itself, and no copy, where it holds no other."""
    mine = table["rank"] == rank
    return table if mine.all() else table[mine].reset_index(drop=True)


def _rows(of: Work, rank: int, parts: list[_Part]) -> list[dict[Hashable, object]]:
    """Return parts of a rank as rows of PHASES, those without length left out, with the busy time of its GPUs."""
    filled = pd.DataFrame([part for part in parts if part.end > part.start], columns=_Part._fields)
    filled = filled.assign(
        rank=rank, start_ns=filled["start"], dur_ns=filled["end"] - filled["start"]
    )
    filled = filled.assign(busy_ns=busy(filled, of.frame)).astype(object)
    return filled.where(filled.notna(), None).drop(columns=["start", "end"]).to_dict("records")


def busy(stretches: pd.DataFrame, operations: pd.DataFrame) -> Int:
    """Return how long the GPUs of each stretch's rank work in it, ns, summed over them.

    `stretches`: rank, start_ns, dur_ns; `operations`: these and gpu.
    """
    worked = np.zeros(len(stretches), np.int64)
    for _, of_gpu in operations.groupby(["rank", "gpu"]):
        inside = union(*ends(of_gpu))
        mine = (stretches["rank"] == of_gpu["rank"].iloc[0]).to_numpy()
        worked[mine] += causes.covered(inside, *ends(stretches[mine]))
    return worked


def _parts(
    of: Work, found: Repetitions, saved: Intervals, collecting: pd.DataFrame
) -> Iterator[_Part]:
    """Yield the parts of a rank from the start to the end of its span."""
    first, last = of.span
    steady = np.flatnonzero(found.steady)
    if not len(steady) or _is_aside(of, found, steady):
        is_loop = len(steady) > 0
        how, name = ("none", None) if is_loop else (found.how, found.name or None)
        whole = _Part("whole", first, last, how=how, name=name)
        yield from _around(whole, _pauses(of, whole.start, whole.end, few=0))
        return
    start, end = found.start[steady], found.end[steady]
    begun, ended = int(start[0]), int(end[-1])
    slow = int(steady[0])
    noun = "repetition" if slow == 1 else "repetitions"
    warm_up = f"{slow:,} slow first {noun}" if slow else None
    interrupted = _interrupted(of, start, end)
    loop = begun, int(end[interrupted[0]] if interrupted else ended)
    work_from = _other_work(of, (first, begun), loop)
    if work_from is None:
        yield _Part("start_up", first, begun, slow or None, name=warm_up)
    else:
        yield _Part("start_up", first, work_from[0])
        yield _other(of, work_from[0], begun)
    edges = [0, *(place + 1 for place in interrupted), len(start)]
    for low, high in pairwise(edges):
        if low:
            yield _other(of, int(end[low - 1]), int(start[low]))
        part = found._replace(start=start[low:high], end=end[low:high])
        yield from _loop(of, part, saved, collecting)
    yield from _after(of, ended, last, loop, saved)


def _other(of: Work, first: int, last: int) -> _Part:
    """Return a stretch of work with other kernels than those of the loop."""
    name = _longest_kernel(of, first, last)
    return _Part("loop", first, last, 1, OTHER, "kernels", name)


def _interrupted(of: Work, start: Int, end: Int) -> list[int]:
    """Return after which repetitions other work interrupts the loop: a second prefill, before more decoding."""
    launched = of.start[of.is_kernel]
    lasted = np.r_[0, np.cumsum((of.end - of.start)[of.is_kernel])]
    low, high = np.searchsorted(launched, [end[:-1], start[1:]])
    is_much = lasted[high] - lasted[low] >= WORK * lasted[-1]
    places = []
    for place in np.flatnonzero(is_much).tolist():
        between = int(end[place]), int(start[place + 1])
        repetition = int(start[place]), int(end[place])
        if _other_work(of, between, repetition) is not None:
            places.append(place)
    return places


def _is_aside(of: Work, found: Repetitions, steady: Int) -> bool:
    """Tell whether two repetitions hold less than half of the work: by chance, and no loop."""
    if len(steady) >= FEWEST:
        return False
    inside = causes.covered(union(of.start, of.end), found.start[steady], found.end[steady])
    worked = int(total(union(of.start, of.end), 1)[0])
    return int(inside.sum()) < HALF * worked


def _loop(
    of: Work, found: Repetitions, saved: Intervals, collecting: pd.DataFrame
) -> Iterator[_Part]:
    """Yield the loop's stretches of repetitions of one kind, and the pauses in it."""
    start, end = found.start, found.end
    begun, ended = int(start[0]), int(end[-1])
    pauses = _pauses(of, begun, ended, few=len(start))
    paused = union(np.r_[pauses.start, saved.start], np.r_[pauses.end, saved.end])
    paused = intersect(paused, union(np.array([begun]), np.array([ended])))
    own_start, own_end = ends(collecting)
    no_work = union(np.r_[paused.start, own_start], np.r_[paused.end, own_end])
    kinds = _kinds(end - start - causes.covered(no_work, start, end))
    works = _after_pauses(start, paused)
    # A stretch of one kind begins where the kind changes.
    changes = np.flatnonzero([True, *(before != kind for before, kind in pairwise(kinds))])
    edges = [*(_changed(int(place), start, paused) for place in changes), ended]
    for place, (low, high) in zip(changes, pairwise(edges), strict=True):
        whole = _Part("loop", low, high, 0, kinds[place], found.how, found.name)
        for part in _around(whole, intersect(paused, union(np.array([low]), np.array([high])))):
            if part.phase == "pause":
                is_saved = bool(
                    causes.covered(saved, np.array([part.start]), np.array([part.end]))[0]
                )
                yield part._replace(name=CHECKPOINT if is_saved else None)
            else:
                inside = (works >= part.start) & (works < part.end)
                yield part._replace(repetitions=int(inside.sum()))


def _after_pauses(time: Int, paused: Intervals) -> Int:
    """Return each time, or the end of the pause that it lies in."""
    place = np.searchsorted(paused.start, time, side="right") - 1
    inside = (place >= 0) & (time < np.r_[paused.end, 0][place])
    return np.where(inside, np.r_[paused.end, 0][place], time)


def _changed(place: int, start: Int, paused: Intervals) -> int:
    """Return when the kind of a repetition begins: with the pause before it, if one parts it from the one before."""
    at = int(start[place])
    between = (
        paused.start[(paused.start > start[place - 1]) & (paused.end <= at)]
        if place
        else paused.start[:0]
    )
    return int(between.min(initial=at))


def _after(of: Work, ended: int, last: int, loop: Window, saved: Intervals) -> Iterator[_Part]:
    """Yield what follows the last repetition: other work, a pause in which state is saved, the end."""
    work = _other_work(of, (ended, last), loop)
    if work is not None:
        yield _other(of, ended, work[1])
        ended = work[1]
    inside = causes.covered(saved, np.array([ended]), np.array([last]))[0]
    if 2 * inside > last - ended:
        yield _Part("pause", ended, last, name=CHECKPOINT)
    else:
        yield _Part("end", ended, last)


def _around(part: _Part, pauses: Intervals) -> Iterator[_Part]:
    """Yield a part without the pauses in it, and the pauses, by start."""
    at = part.start
    for low, high in zip(pauses.start.tolist(), pauses.end.tolist(), strict=True):
        yield part._replace(start=at, end=low)
        yield _Part("pause", low, high)
        at = high
    yield part._replace(start=at)


def _gaps(of: Work, first: int, last: int) -> Intervals:
    """Return when no GPU of the rank works between two moments, without what touches them."""
    busy = union(of.start, of.end)
    inside = (busy.end[:-1] > first) & (busy.start[1:] < last)
    low, high = busy.end[:-1][inside], busy.start[1:][inside]
    whole = (low >= first) & (high <= last)
    return Intervals(low[whole], high[whole], np.zeros(int(whole.sum()), np.int64))


def _pauses(of: Work, first: int, last: int, *, few: int) -> Intervals:
    """Return the gaps of a stretch that are no habit of the program.

    What outlasts all the rest is a pause (`steps.outlasting`). Of the other gaps the longest are
    pauses where each is at least as long as all shorter ones together, and take 3 % of the stretch.
    These are at most a tenth of the gaps, and of the `few` repetitions of a loop (0: there is no
    loop), but one may always be; two repetitions show nothing of what is part of each.
    """
    lone = steps.outlasting(of.start, of.end)
    lone = intersect(lone, union(np.array([first]), np.array([last])))
    gaps = _gaps(of, first, last)
    is_other = causes.covered(lone, gaps.start, gaps.end) == 0
    gaps = union(gaps.start[is_other], gaps.end[is_other])
    if 0 < few < FEWEST or not len(gaps.start):
        return lone
    habits = last - first - int((lone.end - lone.start).sum())
    usual = _longest(gaps, habits, few)
    return union(np.r_[lone.start, usual.start], np.r_[lone.end, usual.end])


def _longest(gaps: Intervals, whole: int, few: int) -> Intervals:
    """Return the longest gaps of a stretch that lasts `whole` ns, as `_pauses` says."""
    length = gaps.end - gaps.start
    order = np.argsort(-length, kind="stable")
    falling = length[order]
    shorter = falling.sum() - np.cumsum(falling)
    most = max(int(FEW_GAPS * min(len(length), few or len(length))), 1)
    lone = np.flatnonzero((falling >= shorter)[:most])
    count = int(lone[-1]) + 1 if len(lone) else 0
    # Without the pauses the stretch is shorter: a short gap may matter in what is left.
    left = whole - int(falling[:count].sum())
    chosen = order[:count][falling[:count] >= NOTABLE * (left + falling[:count])]
    return union(gaps.start[chosen], gaps.end[chosen])


def _kinds(length: Int) -> list[str | None]:
    """Return the kind of each repetition by its length, ns; None where all are of one kind."""
    one: list[str | None] = [None] * len(length)
    ordered = np.sort(np.maximum(length, 1))
    fewest = max(int(np.ceil(SHARE_OF_KIND * len(ordered))), 2)
    if len(ordered) < 2 * fewest:
        return one
    ratio = ordered[1:] / ordered[:-1]
    place = fewest - 1 + int(ratio[fewest - 1 : len(ordered) - fewest].argmax())
    sides = (ordered[: place + 1], ordered[place + 1 :])
    spread = max(float(np.quantile(side, 0.9) / np.quantile(side, 0.1)) for side in sides)
    if ratio[place] < max(APART, spread):
        return one
    names = [f"about {duration(float(np.median(side)))}" for side in sides]
    return [names[int(of > ordered[place])] for of in np.maximum(length, 1).tolist()]


def _other_work(of: Work, stretch: Window, loop: Window) -> Window | None:
    """Return the part of a stretch outside the loop that is work of another kind, None where there is none."""
    first, last = stretch
    inside = of.is_kernel & (of.start >= first) & (of.start < last)
    if not inside.any():
        return None
    # A pause parts the work from what is done once: loading a model, for instance.
    low, high = int(of.start[inside].min()), min(int(of.end[inside].max()), last)
    gaps = _gaps(of, low, high)
    longest = int((gaps.end - gaps.start).argmax()) if len(gaps.start) else -1
    if longest >= 0 and 2 * (gaps.end - gaps.start)[longest] >= high - low:
        low = int(gaps.end[longest])
    inside &= of.start >= low
    in_loop = of.is_kernel & (of.start >= loop[0]) & (of.start < loop[1])
    code = of.frame["full_name"].cat.codes.to_numpy()
    dur = of.end - of.start
    mine, theirs = np.unique(code[inside]), np.unique(code[in_loop])
    other = dur[inside & ~np.isin(code, theirs)].sum()
    is_warm_up = bool(np.isin(theirs, mine).mean() >= ALIKE) if len(theirs) else False
    is_much = dur[inside].sum() >= WORK * dur[of.is_kernel].sum()
    is_busy = causes.covered(union(of.start, of.end), np.array([low]), np.array([high]))[
        0
    ] >= HALF * (high - low)
    is_other = other >= HALF * dur[inside].sum()
    return (low, high) if is_much and is_busy and is_other and not is_warm_up else None


def _longest_kernel(of: Work, first: int, last: int) -> str:
    inside = of.is_kernel & (of.start >= first) & (of.start < last)
    dur = pd.Series((of.end - of.start)[inside])
    return str(dur.groupby(of.frame["name"][inside].astype(str).to_numpy()).sum().idxmax())


def _saved(
    found: Repetitions,
    rank: int,
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    ranges: pd.DataFrame,
    python_calls: pd.DataFrame,
    api_calls: pd.DataFrame,
    os_calls: pd.DataFrame,
) -> Intervals:
    """Return when all GPUs of a rank stop because state is saved; nothing where most repetitions do that."""
    nothing = union(found.start[:0], found.end[:0])
    if not found.steady.any():
        return nothing
    times = pd.DataFrame(
        {"start_ns": found.start, "dur_ns": found.end - found.start, "steady": found.steady}
    )
    table = steps.STEPS.make(
        times.assign(rank=rank, step=np.arange(len(times)), name=found.name, how=found.how)
    )
    rows = checkpoints.detect(
        *(kernels, copies, api_calls),
        ranges=ranges,
        python_calls=python_calls,
        os_calls=os_calls,
        steps=table,
    )
    inside: Intervals | None = None
    for gpu in kernels["gpu"].unique():
        mine = rows[rows["gpu"] == gpu]
        stretches = union(*ends(mine))
        inside = stretches if inside is None else intersect(inside, stretches)
    if inside is None:
        return nothing
    start, end = found.start[found.steady], found.end[found.steady]
    each = np.searchsorted(inside.start, end) > np.searchsorted(inside.start, start)
    return nothing if len(each) >= FEWEST and 2 * each.sum() > len(each) else inside
