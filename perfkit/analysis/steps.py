"""Where does one iteration of the program end and the next begin, and which of them are typical?

An iteration (step) is found in one of three ways, the first that works for a rank:

1. "profiler step": ranges the profiler wrote around iterations (kind "step" or names ProfilerStep#N).
2. "nvtx": ranges a person named, that repeat on one thread at one depth, outermost first. One called a step or a batch
   is the step; when siblings repeat, or the range is a part, a step goes from one start of the first to the next.
3. "kernel sequence": the sequence of kernels that repeats (`analysis.sequences`), of the device and process with the
   most. The step starts where the device regularly idles longest. Where one kernel repeats alone, a step is a burst
   of it, if long pauses part bursts of about as many. Launches of one kernel alone are no steps (`without_launches`).

Steps are found in the whole capture: a window selects among them and changes neither numbers nor
bounds. Ranges are told apart by their *label*: the name up to the first ", " (frameworks append
numbers and sizes after it) and without a number at its end when that number counts ("Batch 7"; but
"layer_7" stays itself when every iteration has a layer_7). Ranges of one process, thread, domain
and depth form a *level*; depth counts only the ranges considered. Labels that say epoch and names
that a framework or a library writes for every operator are not considered.

What repeats inside one pass through the model is a layer, not a step (`perfkit.analysis.layers`):
of the second and the third way no steps are then left.
"""

import math
import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from perfkit.analysis import layers
from perfkit.analysis.causes import covered, started_by, where
from perfkit.analysis.grouping import numbered, over
from perfkit.analysis.intervals import Bool, Int, Intervals, Window, ends, total, union
from perfkit.analysis.intervals import bounds as checked
from perfkit.analysis.sequences import ALIKE, EVEN, FEWEST, repeats
from perfkit.schema import Column, Table
from perfkit.tables import API_CALLS, DUR, KERNELS, PYTHON_CALLS, RANGES, RANK, START

CHANGED = 1.2  # of the shorter steps: how long the steps of another phase are (convention)
LEVEL = ["process", "thread", "domain", "depth"]
# A range with a name of the first list is an iteration, one with a name of the second a part of
# one.
ITERATION = re.compile(
    r"(?<![a-z])(?:time_?step|step|iter|iteration|(?:micro_?)?batch|token|decode)s?(?![a-z])"
    r"|execute(?:_\d+)?_context_\d",  # a step of vLLM and SGLang
    re.I,
)
PART = re.compile(
    (
        r"(?<![a-z])(?:forward|fwd|backward|bwd|optimi[sz]er|loss|prefill|data[ _-]?load(?:ing"
        r"|er))(?![a-z])"
    ),
    re.I,
)
# "aten::mm", "Optimizer.step#Adam.step", "{'mod': ...", "epoch 3", "ncclSend", "cublasSgemm_v2"
NEVER = re.compile(
    r"::|#|\{|epoch|^P?MPI_|^(?:nccl|rccl|cublas|cudnn|cusparse|cusolver|cufft)", re.I
)
_NUMBER = re.compile(r"[\s_:=(\[-]*\d+(?:\s*/\s*\d+)?[)\]]?$")
STEPS = Table(
    "STEPS",
    "an iteration of the program",
    (
        RANK,
        Column("step", "int64", "number of the iteration in the capture, from 0"),
        *(START, DUR),
        Column("name", "category", "range or kernel it starts with"),
        Column("how", "category", "profiler step, nvtx or kernel sequence"),
        Column(
            "steady",
            "bool",
            "whether it is typical: after compilation and warm-up, and its end known",
        ),
    ),
    ("rank", "step"),
)
_NEVER = np.iinfo(np.int64).max  # of other types `ufunc.at` is slow
OUTLASTING = 100  # times all the rest, from which on a gap is a pause whatever repeats (convention)
BURST = 10  # times the median pause: a pause that ends a burst of one kernel (convention)
FEWEST_BURSTS = 5  # fewer are the work between two or three pauses of the program (convention)
LEAST_PAUSE_NS = 1_000  # which a median pause counts for at least
SEVERAL = 2  # kernels of a burst
SLOW = 1.5
MOST_WARM = 1 / 3
# Of the later steps: how many are as slow as a first step that is no warm-up (convention)
RECURRING = 1 / 20


def detect(
    ranges: pd.DataFrame,
    kernels: pd.DataFrame,
    *,
    api_calls: pd.DataFrame | None = None,
    python_calls: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return the iterations of each rank; none is found where nothing repeats at least three times.

    PYTHON_CALLS tell layers from steps by the calls of modules, API_CALLS when the CPU launched the
    kernels; without API_CALLS a kernel counts as launched when it starts.

    The first steps are not steady while they last more than 1.5 times the median of the second half
    of the rank's steps, and more than three quarters of that half do (compilation, warm-up); if
    that holds for more than a third of the steps they are a phase of their own, and steady. What
    recurs is steady too (checkpoints): one of twenty later steps is slow and lasts as long as the
    slowest of them, within a quarter. The very first is not steady when it is longer than every
    later one, nor is the last when the median is more than 1.5 times as long, or when it lasts much
    longer than all others: nothing shows when the next would have begun.
    STEPS: steps of a rank do not overlap.
    """
    RANGES.check(ranges)
    KERNELS.check(kernels)
    if api_calls is not None:
        API_CALLS.check(api_calls)
    if python_calls is not None:
        PYTHON_CALLS.check(python_calls)
    ranks = np.union1d(ranges["rank"].unique(), kernels["rank"].unique())
    spans_of = of_program(ranges, kernels, api_calls)
    parts = zip(ranks.tolist(), _split(spans_of, ranks), _split(kernels, ranks), strict=True)
    modules, per_rank = layers.modules(python_calls), []
    for rank, spans, work in parts:
        steps = _of_rank(spans, work, rank, api_calls, modules)
        if len(steps):
            per_rank.append(steps)
    return STEPS.make(pd.concat(per_rank)[STEPS.column_names]) if per_rank else STEPS.empty()


def inside(
    steps: pd.DataFrame,
    window: Window | None,
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return the STEPS that lie in a window whole, their numbers unchanged; all of them without a window.

    A window is a time of the GPU, so a step of a CPU that runs ahead lies in it with all the kernels
    that it launches, where API_CALLS tell that; else a step lies in it by its own times.
    """
    if window is None or steps.empty:
        return steps
    checked(window)
    start, end = ends(steps)
    if api_calls is not None and steps["how"].ne("kernel sequence").all():
        begun, ended = _work(steps, kernels, api_calls)
        launches = begun < _NEVER
        start = np.where(launches, begun, start)
        end = np.where(launches, ended, end)
    is_inside = (start >= window[0]) & (end <= window[1])
    return steps[is_inside].reset_index(drop=True)


def of_program(
    ranges: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame | None
) -> pd.DataFrame:
    """Return the RANGES of processes that launch kernels: what another process marks is no step of theirs.

    Without kernels they are those of processes that call CUDA. All of them where the ids of ranges
    and calls do not agree with those of kernels. Of a thread that never calls CUDA, though others
    of its process do, only ranges are returned whose names say that they are steps or parts of
    them: a watcher's polls are no steps.
    """
    working = api_calls if kernels.empty and api_calls is not None else kernels
    launching = working["process"].unique()
    mine = ranges["process"].isin(launching)
    is_known = mine.any() or (api_calls is not None and api_calls["process"].isin(launching).any())
    of_processes = ranges[mine] if is_known else ranges
    if api_calls is None or api_calls.empty or of_processes.empty:
        return of_processes
    return of_processes[~_is_beside(of_processes, api_calls)]


def _is_beside(ranges: pd.DataFrame, api_calls: pd.DataFrame) -> Bool:
    """Tell which ranges lie on a thread that never calls CUDA, and do not say that they are steps."""
    place = ["rank", "process", "thread"]
    calling = api_calls[place].drop_duplicates()
    of_process, of_thread = (
        pd.MultiIndex.from_frame(ranges[keys]).isin(pd.MultiIndex.from_frame(calling[keys]))
        for keys in (place[:2], place)
    )
    beside = of_process & ~of_thread
    if beside.any():
        beside &= (ranges["kind"] != "step").to_numpy() & ~where(ranges["name"], _telling)
    return beside


def steady(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the STEPS that are typical, after compilation and warm-up, their numbers unchanged."""
    return steps[STEPS.check(steps)["steady"]].reset_index(drop=True)


def without_launches(
    steps: pd.DataFrame, kernels: pd.DataFrame, copies: pd.DataFrame
) -> pd.DataFrame:
    """Return STEPS without those of ranks that only launch one kernel again and again: launches are no steps.

    Such steps were found by their kernels, and most of them hold one operation, a copy or memset
    counted.
    """
    launching = []
    found = steps[steps["how"] == "kernel sequence"]
    for rank, mine in found.groupby("rank"):
        begun = [table.loc[table["rank"] == rank, "start_ns"] for table in (kernels, copies)]
        times = np.sort(np.concatenate(begun))
        start, end = ends(mine)
        held = np.searchsorted(times, end) - np.searchsorted(times, start)
        if np.median(held) <= 1:
            launching.append(rank)
    return steps[~steps["rank"].isin(launching)].reset_index(drop=True)


def count(steps: pd.DataFrame) -> int:
    """Return how many of STEPS there are; what several ranks do together is one step.

    Ranks may have been recorded for different times: the one with the most steps counts.
    """
    return int(STEPS.check(steps).groupby("rank").size().max()) if len(steps) else 0


def last_phase(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the STEPS since their length last changed for good, rank by rank; all of them where it never did.

    A phase has a tenth of the rank's steps or more. It begins where the sums of the ranks of the
    lengths part most (Pettitt's change point), if nine tenths of the steps on each side lie on
    their own side of the middle between both medians, and these differ by a fifth.
    """
    kept = [
        of_rank.iloc[_last_change(of_rank["dur_ns"]) :]
        for _, of_rank in STEPS.check(steps).groupby("rank")
    ]
    return pd.concat(kept, ignore_index=True) if kept else steps


def _last_change(dur: pd.Series) -> int:
    first, least = 0, max(len(dur) // 10, FEWEST)
    while len(part := dur.iloc[first:]) >= 2 * least:
        sums = (part.rank() - (len(part) + 1) / 2).cumsum().abs().to_numpy()
        place = least + int(sums[least - 1 : len(part) - least].argmax())
        low, high = sorted(
            (part.iloc[:place], part.iloc[place:]), key=lambda side: float(side.median())
        )
        middle = math.sqrt(low.median() * high.median())
        if (
            high.median() < CHANGED * low.median()
            or min((low < middle).mean(), (high > middle).mean()) < ALIKE
        ):
            break
        first += place
    return first


def on_gpu(steps: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame) -> pd.Series:
    """Return how long the GPU takes for each of STEPS that the CPU leaves before it, ns; NaN of others.

    By their index. The CPU leaves a step early if its last kernel ends after it. How long the GPU
    takes is as in `by_gpu`.
    """
    begun, ended = _work(steps, kernels, api_calls)
    lasted = _moved(steps, begun, ended)["dur_ns"].reindex(steps.index)
    return lasted.where(ended > ends(steps)[1])


def by_gpu(steps: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return STEPS as the GPU takes them, by the index of `steps`; a step that launches no kernel is left out.

    A step lasts from the first kernel that it launches to the first one of the next step. Where no
    next step launches one, it lasts to the end of its last kernel, or as long as the CPU takes if
    the CPU did not leave it early. Which steps are steady is told anew. Launches are joined on
    (rank, process, correlation).
    """
    return _moved(steps, *_work(steps, kernels, api_calls))


def _moved(steps: pd.DataFrame, begun: Int, ended: Int) -> pd.DataFrame:
    """Return STEPS as `by_gpu`, given when the first kernel of each begins and its last one ends."""
    launches = begun < _NEVER
    zero = int(steps["start_ns"].min()) if len(steps) else 0  # small numbers stay exact as floats
    on_gpu_ns = np.where(launches, begun - zero, np.nan)
    found = steps.assign(begun=on_gpu_ns, ended=ended - zero, start_ns=steps["start_ns"] - zero)
    of_ranks = found.sort_values(["rank", "start_ns"], kind="stable").groupby("rank")
    following = of_ranks["begun"].shift(-1).reindex(found.index)
    is_behind = of_ranks["ended"].shift(1).reindex(found.index) > found["start_ns"]
    on_cpu = found["start_ns"] + found["dur_ns"]
    # The GPU begins late because it is behind, or because the CPU prepares its first kernel.
    own = np.where(is_behind, on_cpu, found["begun"] + found["dur_ns"])
    last = np.where(found["ended"] > on_cpu, found["ended"], np.maximum(own, found["ended"]))
    dur = following.fillna(pd.Series(last, found.index)) - found["begun"]
    moved = steps.assign(start_ns=begun, dur_ns=dur)[launches].astype({"dur_ns": "int64"})
    for _, dur_ns in moved.groupby("rank")["dur_ns"]:
        moved.loc[dur_ns.index, "steady"] = settled(dur_ns.to_numpy())
    return moved


def _work(steps: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame) -> tuple[Int, Int]:
    """Return when the kernels that each of STEPS launches begin and end, ns: _NEVER and -_NEVER without any."""
    call = started_by(KERNELS.check(kernels), API_CALLS.check(api_calls))
    rank = kernels["rank"].to_numpy()
    start, end = ends(kernels)
    begun = np.full(len(steps), _NEVER)
    ended = np.full(len(steps), -_NEVER)
    by_start = (
        STEPS.check(steps)
        .assign(place=np.arange(len(steps)))
        .sort_values("start_ns", kind="stable")
    )
    for of, mine in by_start.groupby("rank"):
        row = np.flatnonzero((rank == of) & (call >= 0))
        called = api_calls["start_ns"].to_numpy()[call[row]]
        first, last = ends(mine)
        step = np.searchsorted(first, called, side="right") - 1
        inside = (step >= 0) & (called < last[step])
        row = row[inside]
        place = mine["place"].to_numpy()[step[inside]]
        np.minimum.at(begun, place, start[row])
        np.maximum.at(ended, place, end[row])
    return begun, ended


def _split(frame: pd.DataFrame, ranks: Int) -> list[pd.DataFrame]:
    """Return the rows of each rank, without copying a table that is in its order."""
    if not frame["rank"].is_monotonic_increasing:
        frame = frame.sort_values("rank", kind="stable")
    bound = (
        np.searchsorted(frame["rank"], ranks),
        np.searchsorted(frame["rank"], ranks, side="right"),
    )
    return [frame.iloc[first:last] for first, last in zip(*bound, strict=True)]


def _of_rank(
    ranges: pd.DataFrame,
    kernels: pd.DataFrame,
    rank: int,
    api_calls: pd.DataFrame | None,
    modules: pd.DataFrame,
) -> pd.DataFrame:
    """Return STEPS of one rank, by the first way that finds any."""
    marked = ranges[
        (ranges["kind"] == "step")
        | where(ranges["name"], re.compile(r"ProfilerStep#?\s*\d+").match)
    ]
    marked = marked.iloc[_most(marked, ["process", "thread"])]
    steps = (
        marked[["start_ns", "dur_ns", "name"]]
        .sort_values("start_ns", kind="stable")
        .assign(how="profiler step")
    )
    steps = _begun(steps, layers.launched(kernels, api_calls))
    if not len(steps):
        passes = layers.passes(ranges, modules[modules["rank"] == rank])
        steps = iterations(ranges, kernels["start_ns"].to_numpy()).assign(how="nvtx")
        if layers.are_layers(steps["start_ns"].to_numpy(), passes):
            steps = steps.iloc[:0]
    if not len(steps):
        steps = _sequence(kernels)
        begun = layers.launched(kernels.iloc[steps["place"]], api_calls)
        if layers.are_layers(begun, passes) or layers.is_one_forward(begun, ranges):
            steps = steps.iloc[:0]
    start, end = ends(steps)
    paused = covered(outlasting(*ends(kernels)), start, end)
    return steps.assign(rank=rank, step=np.arange(len(steps)), steady=settled(end - start - paused))


def _begun(steps: pd.DataFrame, launched: Int) -> pd.DataFrame:
    """Return steps that a profiler marked, without a last one that only began.

    The profiler opens a step when it closes the one before. If it stops then, the last holds no
    launch (`launched`: ns) though the others do, and is shorter than half of them. A whole step
    without a launch stays: its work is lost.
    """
    if len(steps) < 2:
        return steps
    last = int(steps["start_ns"].iloc[-1])
    is_empty = not (launched >= last).any() and bool((launched < last).any())
    is_short = 2 * steps["dur_ns"].iloc[-1] < steps["dur_ns"].iloc[:-1].median()
    return steps.iloc[:-1] if is_empty and is_short else steps


def outlasting(start: Int, end: Int) -> Intervals:
    """Return the gaps between intervals that last OUTLASTING times as long as all the rest, longer gaps left out.

    Such a gap is a pause, however few steps there are to show what is part of each.

    >>> [times.tolist() for times in outlasting(np.array([0, 2, 1000]), np.array([1, 3, 1001]))[:2]]
    [[3], [1000]]
    """
    busy = union(start, end)
    low, high = busy.end[:-1], busy.start[1:]
    if not len(low):
        return union(low, high)
    order = np.argsort(low - high, kind="stable")
    falling = (high - low)[order]
    rest = busy.end[-1] - busy.start[0] - np.cumsum(falling)
    lone = np.flatnonzero(falling >= OUTLASTING * rest)
    chosen = order[: int(lone[-1]) + 1] if len(lone) else order[:0]
    return union(low[chosen], high[chosen])


def _sequence(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the stretches of kernels that repeat, and the place of the first kernel of each."""
    columns = ["start_ns", "dur_ns", "name", "full_name", "in_graph", "correlation"]
    place = _most(kernels, ["gpu", "process"])
    there = kernels[columns].iloc[place]
    if not there["start_ns"].is_monotonic_increasing:
        order = np.argsort(there["start_ns"].to_numpy(), kind="stable")
        place = place[order]
        there = there.iloc[order]
    start, end = ends(there)
    pause = np.zeros(len(start), np.int64)
    pause[1:] = np.maximum(start[1:] - np.maximum.accumulate(end)[:-1], 0)
    pause[:1] = pause.max(initial=0) + 1  # nothing ran before the first kernel
    first, stop = repeats(there["full_name"].cat.codes.to_numpy().astype(np.int64), pause)
    if len(first) and (stop - first == 1).all():  # one kernel may run many times in a step
        of_bursts = _bursts(pause)
        first, stop = of_bursts if len(of_bursts[0]) else (first, stop)
    begun = there.iloc[first]
    if begun["in_graph"].all() and len(begun["correlation"].unique()) == 1:
        first = stop = first[:0]  # layers: an iteration launches a graph, no graph holds iterations
    begin, finish = bounds(start, end, first, stop)
    name = there["name"].iloc[first].astype(object).to_numpy()
    times = {"start_ns": begin, "dur_ns": finish - begin}
    return pd.DataFrame({**times, "name": name, "how": "kernel sequence", "place": place[first]})


def _bursts(pause: Int) -> tuple[Int, Int]:
    """Return the first place of each burst of about as many kernels, and the place after its last; maybe none.

    A pause that is much longer than the usual one (convention) comes before a burst.

    >>> first, stop = _bursts(np.array([9, 0, 0] * 5) * 10_000)
    >>> first.tolist(), stop.tolist()
    ([0, 3, 6, 9, 12], [3, 6, 9, 12, 15])
    """
    first = np.flatnonzero(pause >= BURST * max(float(np.median(pause)), LEAST_PAUSE_NS))
    if len(first) < FEWEST_BURSTS:
        return first[:0], first[:0]
    stop = np.append(first[1:], len(pause))
    usual = np.median(stop - first)
    even = np.abs(stop - first - usual) <= EVEN * usual
    if even.mean() < ALIKE or usual < SEVERAL:
        return first[:0], stop[:0]
    return first[even], stop[even]


def _most(frame: pd.DataFrame, keys: list[str]) -> Int:
    """Return the places of the rows of the combination of keys that has the most rows."""
    _, number = numbered(frame, keys)
    return np.flatnonzero(number == np.bincount(number, minlength=1).argmax())


def settled(dur: Int) -> Bool:
    """Tell which steps are typical: after the warm-up, and not the last if nothing shows when it ended."""
    if not len(dur):
        return np.zeros(0, bool)
    is_whole = _is_last_whole(dur)
    judged = dur if is_whole or len(dur) < FEWEST else dur[:-1]
    later = judged[len(judged) // 2 :]
    usual = np.median(later)
    warm = fast = int((judged <= max(SLOW * usual, np.quantile(later, 0.75))).argmax())
    if warm > len(judged) * MOST_WARM:
        warm = 0
    if warm == 0 and len(judged) > 1 and judged[0] > judged[1:].max():
        warm = 1
    slowest = judged[:warm].max(initial=0)
    as_slow = judged[fast:] >= max(SLOW * usual, (1 - EVEN) * slowest)
    # A pause of minutes is no recurrence of a slow step.
    as_slow &= (1 - EVEN) * judged[fast:] <= slowest
    if as_slow.mean() >= RECURRING:  # what recurs is no warm-up
        warm = 0
    typical = np.arange(len(dur)) >= warm
    typical[-1] &= is_whole
    return typical


def _is_last_whole(dur: Int) -> bool:
    """Say whether the last step ended as the others did.

    A much shorter one was cut off, and in a much longer one than all between the first and the last
    the recording ended.
    """
    usual = np.median(dur[len(dur) // 2 :])
    is_cut = SLOW * dur[-1] < usual
    between = dur[1:-1].max(initial=0)
    is_late = dur[-1] > SLOW * usual and (1 - EVEN) * dur[-1] > between
    return not (is_cut or (is_late and len(dur) > 2))


def iterations(ranges: pd.DataFrame, launched: Int) -> pd.DataFrame:
    """Return the iterations of one rank that named ranges show, by start: `start_ns`, `dur_ns` and `name`; maybe none.

    Levels whose labels say iteration or part of one come first, then the others; among them the
    outermost, then the one whose ranges cover most time. Its labels must repeat
    (`perfkit.analysis.steps`), and more than half of the kernels (`launched`: their starts, ns)
    must start between the first and the last iteration. Labels that do not tell must also repeat
    without long breaks, with kernels in most repetitions: a function called now and then is no
    iteration.
    """
    is_operator = where(ranges["name"], layers.OPERATOR.search)
    spans = ranges[(ranges["kind"] != "mark") & ~is_operator]
    spans = spans.assign(label=_labels(spans["name"]))
    for wanted in (_telling, lambda label: not NEVER.search(label)):
        for level in _levels(spans[where(spans["label"], wanted)]):
            # The stretches of a level that repeat.
            first, stop = repeats(level["label"].cat.codes.to_numpy().astype(np.int64))
            start, end = ends(level)
            begin, finish = bounds(start, end, first, stop)
            labels = level["label"].iloc[first]
            is_single = len(first) and (stop - first == 1).all()
            if is_single and where(labels, layers.LAYER.search).all():
                continue  # a pass runs each layer once
            if is_single and where(labels, ITERATION.search).all():
                finish = end[first]  # the range is the iteration, not what follows it
            name = [_short(n) for n in level["name"].iloc[first]]
            steps = pd.DataFrame({"start_ns": begin, "dur_ns": finish - begin, "name": name})
            if len(steps) and _hold(steps, launched, are_told=wanted is _telling):
                return steps
    return pd.DataFrame(
        {"start_ns": np.zeros(0, np.int64), "dur_ns": np.zeros(0, np.int64), "name": []}
    )


def _telling(label: str) -> bool:
    return not NEVER.search(label) and bool(ITERATION.search(label) or PART.search(label))


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
    """Yield the ranges of each level, by start; levels by depth, then by falling covered time.

    A level of fewer than FEWEST, such as each of many ranges in one another has, cannot repeat and
    is left out.
    """
    spans = spans[spans["dur_ns"] > 0]
    # How many of these ranges enclose each: the others, which were left out, do not count.
    _, thread = numbered(spans, LEVEL[:-1])
    start, end = ends(spans)
    offset = thread * (int(end.max(initial=0)) - int(start.min(initial=0)) + 1)
    order = np.lexsort((-end, start + offset))
    depth = np.zeros(len(start), np.int64)
    # Open at a start: ranges that began before it and had not ended.
    depth[order] = np.arange(len(start)) - np.searchsorted(
        np.sort(end + offset), (start + offset)[order], side="right"
    )
    levels, number = numbered(spans.assign(depth=depth), LEVEL)
    covered = total(union(start, end, number), len(levels))
    order = np.argsort(number, kind="stable")
    counts = np.bincount(number, minlength=len(levels))
    bound = np.r_[0, np.cumsum(counts)]
    by_depth = np.lexsort((-covered, levels["depth"].to_numpy()))
    for level in by_depth[counts[by_depth] >= FEWEST]:
        yield spans.iloc[order[bound[level] : bound[level + 1]]].sort_values(
            "start_ns", kind="stable"
        )


def _hold(steps: pd.DataFrame, launched: Int, *, are_told: bool) -> bool:
    """Tell whether most kernels start between the first and the last iteration.

    If the labels do not tell, iterations must also fill most of that time, and most of them start
    kernels.
    """
    start, dur = steps["start_ns"].to_numpy(), steps["dur_ns"].to_numpy()
    first, last = start[0], start[-1] + dur[-1]
    if len(launched) and ((launched >= first) & (launched < last)).mean() <= 0.5:
        return False
    edges = np.searchsorted(np.sort(launched, kind="stable"), [start, start + dur])
    busy = not len(launched) or 2 * (edges[1] > edges[0]).sum() > len(steps)
    return are_told or bool(busy and 2 * dur.sum() > last - first)


def bounds(start: Int, end: Int, first: Int, stop: Int) -> tuple[Int, Int]:
    """Return begin and end of stretches of intervals that are in the order of their starts, ns.

    A stretch ends where the next begins if that follows at once, else with the last of its
    intervals.

    >>> begin, finish = bounds(np.array([0, 3, 10, 13]), np.array([2, 5, 12, 15]), np.array([0, 2]), np.array([2, 4]))
    >>> begin.tolist(), finish.tolist()
    ([0, 10], [10, 15])
    """
    begin = start[first]
    finish = over(np.maximum, end, first, stop)
    finish[:-1] = np.where(stop[:-1] == first[1:], begin[1:], np.minimum(finish[:-1], begin[1:]))
    return begin, finish
