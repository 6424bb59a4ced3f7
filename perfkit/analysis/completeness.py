"""What does a recording of the GPU lack, and which stretches of time are therefore unknown?

A *stretch* is a row of STRETCHES: a time of a device in which the recording cannot tell whether the
GPU worked. Every function returns stretches in which nothing was recorded on the device (`free`),
but for steps, whose work is lost as a whole.

Innocent are: the launches of a CUDA graph's nodes, which happen once (many operations share the
call of the graph's launch); launches while a stream is captured, which start nothing; kernels whose
launch came before the recording; launches at the very end, whose kernels were still queued when it
ended: only that end is unknown.
"""

import re

import numpy as np
import pandas as pd

from perfkit.analysis import causes
from perfkit.analysis.gaps import GAPS
from perfkit.analysis.intervals import (
    Axis,
    Bool,
    Int,
    devices,
    ends,
    intersect,
    subtract,
    total,
    union,
)
from perfkit.schema import Table
from perfkit.tables import API_CALLS, COPIES, DUR, GPU, KERNELS, OPS, OVERHEAD, RANK, START

STRETCHES = Table(
    "STRETCHES",
    "a time of a device of which the recording does not tell whether it worked",
    (RANK, GPU, START, DUR),
    ("rank", "gpu", "start_ns"),
)
# From the end of the work to that of a wait; to return takes some 10 µs (convention).
BEYOND_NS = 1_000_000
# Of the time of queued operations: their GPU hardly waits between them (convention; at most 8 % in
# 47 traces).
QUEUE_GAPS = 0.1
# Of the usual operators or duration: a step with so many does the work of the others (convention).
SIMILAR = 0.5
OF_COLLECTOR = ("profiler", "flush")  # kinds of OVERHEAD that are no work of CUDA itself
WAIT_CALL = re.compile(
    r"(?:cuda|hip)(?:Device|Thread|Stream)Synchronize|cu(?:Ctx|Stream)Synchronize"
)
HOST_FUNCTION_CALL = re.compile(r"(?:cuda|cu|hip)LaunchHostFunc")
BEGIN_CAPTURE = re.compile(r"(?:cuda|cu|hip)StreamBeginCapture")
END_CAPTURE = re.compile(r"(?:cuda|cu|hip)StreamEndCapture")
PROCESS = ["rank", "process"]
THREAD = ["rank", "process", "thread"]
CALL = ["rank", "process", "correlation"]
_NEVER = np.iinfo(np.int64).max


def is_single_launch(name: str) -> bool:
    """Tell whether a call launches one kernel: no graph, copy or function of the host.

    >>> [is_single_launch(name) for name in ("cudaLaunchKernelExC", "cudaLaunchHostFunc", "cudaGraphLaunch")]
    [True, False, False]
    """
    return causes.is_kernel_launch(name) and not causes.is_graph_launch(name)


def unrecorded(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame
) -> tuple[int, int]:
    """Return how many of `launches` have no kernel, and how many launches there are.

    `launches`, which works out more of each, calls no more of them lost.
    """
    calls, _, row = _joined(kernels, copies, api_calls)
    is_started = np.zeros(len(calls), bool)
    is_started[row[row >= 0]] = True
    return int(len(calls) - is_started.sum()), len(calls)


def launches(kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return each call that launched one kernel, and whether its kernel was recorded.

    One row per call, by thread and start: rank, process, thread, start_ns; `lost`; of the kernel
    gpu (-1 if lost), kernel_start_ns and kernel_end_ns (0 if lost); wait and drained_ns of
    `_waits_after`. Launches during a stream's capture are left out. No launch of a process is lost
    if none has its kernel and as many kernels without a call follow: then the ids do not agree.
    """
    calls, operations, row = _joined(kernels, copies, api_calls)
    started = operations[row >= 0].assign(
        row=row[row >= 0], end_ns=lambda rows: rows["start_ns"] + rows["dur_ns"]
    )
    of_call = started.groupby("row").agg(
        gpu=("gpu", "first"), kernel_start_ns=("start_ns", "min"), kernel_end_ns=("end_ns", "max")
    )
    table = calls[[*THREAD, "start_ns"]].join(of_call)
    table["lost"] = table["gpu"].isna()
    table = table.fillna({"gpu": -1, "kernel_start_ns": 0, "kernel_end_ns": 0})
    table = table.astype({"gpu": "int32", "kernel_start_ns": "int64", "kernel_end_ns": "int64"})
    table["lost"] &= ~_only_unjoined(table, kernels[causes.started_by(kernels, api_calls) < 0])
    table = table.join(_waits_after(table, api_calls))
    return table.sort_values([*THREAD, "start_ns"], ignore_index=True)


def _joined(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, Int]:
    """Return the calls that launch one kernel, the operations, and the row of each one's call, or -1."""
    KERNELS.check(kernels), COPIES.check(copies), API_CALLS.check(api_calls)
    calls = api_calls[
        causes.where(api_calls["name"], is_single_launch) & (api_calls["correlation"] >= 0)
    ]
    calls = calls.drop_duplicates(CALL)
    calls = calls[~_in_capture(calls, api_calls)].reset_index(drop=True)
    operations = _operations(kernels, copies)
    return calls, operations, causes.started_by(operations, calls)


def lost_copies(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame
) -> tuple[int, int]:
    """Return how many calls that copy have no copy in the recording, and how many such calls there are.

    Memsets do not count: profilers leave out a memset that a kernel does.
    """
    is_copy = causes.where(api_calls["name"], causes.COPY_CALL.match)
    is_memset = causes.where(api_calls["name"], is_memset_call)
    calls = api_calls[is_copy & ~is_memset & (api_calls["correlation"] >= 0)].drop_duplicates(CALL)
    calls = calls[~_in_capture(calls, api_calls)]
    row = causes.started_by(_operations(kernels, copies), calls)
    return len(calls) - len(np.unique(row[row >= 0])), len(calls)


def is_memset_call(name: str) -> bool:
    """Tell whether a call sets memory, and copies none."""
    return "emset" in name


def _waits_after(launches: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return the number of the thread's next wait for the GPU after each launch, and when it ends.

    Columns wait, alike for launches before the same wait, and drained_ns: then the kernel has
    ended;
    far beyond all times if no wait follows.
    """
    waits = api_calls[causes.where(api_calls["name"], is_wait)]
    found = pd.DataFrame({"wait": -1, "drained_ns": _NEVER}, index=launches.index)
    if waits.empty or launches.empty:
        return found
    moments = launches[[*THREAD, "start_ns"]].assign(dur_ns=0)
    (called, _), (begun, _) = causes.on_one_axis([moments, waits], THREAD)
    thread, of_wait = causes.numbered_together([launches, waits], THREAD)
    order = np.argsort(begun, kind="stable")
    place = np.searchsorted(begun[order], called)
    following = order[np.minimum(place, len(order) - 1)]
    follows = (place < len(order)) & (of_wait[following] == thread)
    ended = ends(waits)[1][following]
    return found.assign(wait=place, drained_ns=np.where(follows, ended, _NEVER))


def is_wait(name: str) -> bool:
    """Tell whether a call waits until the GPU, or a stream of it, has done all its work."""
    return WAIT_CALL.fullmatch(causes.VARIANT.sub("", name)) is not None


def _operations(kernels: pd.DataFrame, copies: pd.DataFrame) -> pd.DataFrame:
    columns = ["rank", "gpu", "process", "correlation", "start_ns", "dur_ns"]
    return pd.concat([kernels[columns], copies[columns]], ignore_index=True)


def _in_capture(calls: pd.DataFrame, api_calls: pd.DataFrame) -> Bool:
    """Return which calls their thread made while it captured a stream: between the calls that begin
    and end that.
    """
    inside = np.zeros(len(calls), bool)
    begun = api_calls[causes.where(api_calls["name"], BEGIN_CAPTURE.match)]
    ended = api_calls[causes.where(api_calls["name"], END_CAPTURE.match)]
    for *thread, start in begun[[*THREAD, "start_ns"]].to_numpy().tolist():
        ends_of_thread = ended.loc[(ended[THREAD] == thread).all(axis=1), "start_ns"]
        after = ends_of_thread[ends_of_thread >= start]
        until = int(after.min()) if len(after) else _NEVER
        of_thread = (calls[THREAD] == thread).all(axis=1)
        inside |= (of_thread & calls["start_ns"].between(start, until)).to_numpy()
    return inside


def without_call(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame
) -> tuple[pd.DataFrame, int]:
    """Return the operations without a recorded call, and of how many operations a call is expected.

    None is expected of nodes of graphs and pages of unified memory. Nor is it of a process in which
    all without a call come before the first one that has its own: they were queued when the
    recording began, unless the GPU waited between them (`_waiting`). A recording without any call
    lacks the calls whose numbers its operations hold.

    Columns rank, gpu, process, correlation, start_ns, dur_ns.
    """
    operations = _operations(kernels, copies)
    if api_calls.empty:
        return operations[operations["correlation"] >= 0], len(operations)
    is_called = causes.started_by(operations, api_calls) >= 0
    is_page = np.append(np.zeros(len(kernels), bool), causes.migrated(copies).to_numpy(bool))
    is_own = ~_in_graph(kernels, copies) & ~is_page
    missing = operations[~is_called & is_own]
    if missing.empty:
        return missing, int(is_own.sum())
    first = operations[is_called].groupby(PROCESS)["start_ns"].min()
    last = missing.groupby(PROCESS)["start_ns"].max()
    is_lost = (last > first.reindex(last.index)) | _waiting(missing, operations)
    lost = last.index[is_lost]
    found: pd.DataFrame = missing[pd.MultiIndex.from_frame(missing[PROCESS]).isin(lost)]
    return found, int(is_own.sum())


def _waiting(missing: pd.DataFrame, operations: pd.DataFrame) -> pd.Series:
    """Tell of which processes a GPU waited between operations without a call: no queue was full then.

    It waited for BEYOND_NS and for QUEUE_GAPS of the time from the first to the last of them.
    """
    waited = waits_before(missing, operations)["dur_ns"].groupby(
        [missing[name] for name in PROCESS]
    )
    starts = missing.groupby([*PROCESS, "gpu"])["start_ns"].agg(["min", "max"])
    lasted = (starts["max"] - starts["min"]).groupby(level=PROCESS).sum()
    total = waited.sum()
    found: pd.Series = (total > BEYOND_NS) & (total >= QUEUE_GAPS * lasted)
    return found


def waits_before(some: pd.DataFrame, operations: pd.DataFrame) -> pd.DataFrame:
    """Return how long its GPU did nothing before each of some operations: STRETCHES by their rows, maybe of 0 ns.

    Before the first operation of a GPU nothing is known.
    """
    ordered = operations.sort_values("start_ns", kind="stable")
    device = [ordered["rank"], ordered["gpu"]]
    ended = (ordered["start_ns"] + ordered["dur_ns"]).groupby(device).cummax()
    start = some["start_ns"]
    begun = ended.groupby(device).shift().reindex(some.index).fillna(start).clip(upper=start)
    begun = begun.astype("int64")
    return some[["rank", "gpu"]].assign(start_ns=begun, dur_ns=start - begun)


def _in_graph(kernels: pd.DataFrame, copies: pd.DataFrame) -> Bool:
    return np.append(kernels["in_graph"].to_numpy(bool), np.zeros(len(copies), bool))


def _only_unjoined(launches: pd.DataFrame, missing: pd.DataFrame) -> Bool:
    """Return which launches are of a process in which none has its kernel and as many kernels without
    a call follow: the ids of calls and kernels do not agree.
    """
    unjoined = np.zeros(len(launches), bool)
    for key, of_process in launches.groupby(PROCESS):
        operations = _of(missing, key)
        following = int((operations["start_ns"] >= of_process["start_ns"].min()).sum())
        if of_process["lost"].all() and following >= len(of_process):
            unjoined |= (launches[PROCESS] == list(key)).all(axis=1).to_numpy()
    return unjoined


def between_launches(launches: pd.DataFrame, end_ns: int) -> pd.DataFrame:
    """Return the stretches in which the kernels of lost launches ran: STRETCHES, not yet `free`.

    A thread's kernels run in the order of their launches, as far as one stream tells: what is lost
    ran after its own call and the kernel of the launch before, and before the kernel of the launch
    after and the end of the thread's next wait for the GPU. Without a launch or wait after, the
    stretch lasts until `end_ns`, the end of the recording.
    """
    lost = launches["lost"].to_numpy()
    if not lost.any():
        return STRETCHES.empty()
    thread = launches.groupby(THREAD).ngroup()
    known = launches.where(~launches["lost"])
    before = known.groupby(thread)[["kernel_end_ns", "gpu"]].ffill()
    after = known.groupby(thread)[["kernel_start_ns", "gpu"]].bfill()
    follows = (np.diff(thread) == 0) & (np.diff(launches["wait"]) == 0)
    first = lost & ~np.append(False, lost[:-1] & follows)
    called = launches["start_ns"].to_numpy()[first]
    start = np.fmax(called, before["kernel_end_ns"].to_numpy()[first])
    end = after["kernel_start_ns"].fillna(float(end_ns)).to_numpy()[first]
    end = np.fmin(end, launches["drained_ns"].to_numpy()[first])
    rank = launches["rank"].to_numpy()[first]
    parts = []
    for gpu in (before["gpu"].to_numpy()[first], after["gpu"].to_numpy()[first]):
        there = ~np.isnan(gpu) & (end > start)
        columns = {"rank": rank[there], "gpu": gpu[there], "start_ns": start[there]}
        parts.append(pd.DataFrame({**columns, "dur_ns": (end - start)[there]}).astype("int64"))
    return _table(pd.concat(parts).drop_duplicates())


def beyond_work(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame, overhead: pd.DataFrame
) -> pd.DataFrame:
    """Return the waits of the CPU that end long after the last recorded operation of their process.

    A synchronisation returns when the work before it is done. If nothing was recorded in its last
    part, and this is longer than BEYOND_NS and than the part with recorded work, then the GPU
    worked on what was not recorded. A wait after a function of the host in a stream
    (cudaLaunchHostFunc) may wait for the CPU and does not count; nor does the collector's own time
    (OVERHEAD).

    One row per wait, by start: rank, gpu (of the last operation), start_ns and dur_ns (the part
    without work), work_ns (the part before).
    """
    waits = api_calls[causes.where(api_calls["name"], is_wait)]
    host = api_calls[causes.where(api_calls["name"], HOST_FUNCTION_CALL.match)]
    operations = _operations(kernels, copies)
    of_process = dict(iter(operations.groupby(PROCESS)))
    parts = [
        _tails(calls, of_process[key], _of(host, key))
        for key, calls in waits.groupby(PROCESS)
        if key in of_process
    ]
    if not parts:
        return STRETCHES.empty().assign(work_ns=0)
    found = pd.concat(parts, ignore_index=True)
    collecting = overhead[overhead["kind"].isin(OF_COLLECTOR)]
    found["dur_ns"] -= causes.covered_by(found, collecting) if len(collecting) else 0
    is_long = (found["dur_ns"] > BEYOND_NS) & (found["dur_ns"] > found["work_ns"])
    return found[is_long].sort_values("start_ns", kind="stable", ignore_index=True)


def _of(frame: pd.DataFrame, process: object) -> pd.DataFrame:
    return frame[(frame[PROCESS] == list(process)).all(axis=1)]  # type: ignore[call-overload]


def _tails(waits: pd.DataFrame, operations: pd.DataFrame, host: pd.DataFrame) -> pd.DataFrame:
    """Return of each wait of a process the part after the last operation that started before the
    wait ended.
    """
    operations = operations.sort_values("start_ns", kind="stable")
    begun = operations["start_ns"].to_numpy()
    ended = begun + operations["dur_ns"].to_numpy()
    latest = np.maximum.accumulate(ended)
    waits = waits.sort_values("start_ns", kind="stable").drop_duplicates(["start_ns", "dur_ns"])
    start = waits["start_ns"].to_numpy()
    end = start + waits["dur_ns"].to_numpy()
    place = np.searchsorted(begun, end) - 1
    is_after = place >= 0
    last = np.where(is_after, latest[np.maximum(place, 0)], start)
    free = np.clip(last, start, end)
    called = np.sort(host["start_ns"].to_numpy())
    previous = np.append(np.iinfo(np.int64).min, end[:-1])
    for_host = np.searchsorted(called, end) > np.searchsorted(called, previous)
    table = pd.DataFrame(
        {
            "rank": waits["rank"].to_numpy(),
            "gpu": operations["gpu"].to_numpy()[np.maximum(place, 0)],
            "start_ns": free,
            "dur_ns": end - free,
            "work_ns": free - start,
        }
    )
    tails: pd.DataFrame = table[is_after & ~for_host]
    return tails


def empty_steps(
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    ops: pd.DataFrame,
) -> pd.DataFrame:
    """Return the STEPS in which nothing was launched and nothing started on a GPU, though they do
    the work of others.

    They do it if half as many operators ran in them as usual, or, without operators, if they last
    about as long. Only ranks with recorded calls are judged: without these a step whose work was
    launched earlier looks alike.
    """
    OPS.check(ops)
    if steps.empty or api_calls.empty:
        return steps.iloc[:0]
    launching = api_calls[causes.where(api_calls["name"], causes.is_launch)]
    begun = _started_in(steps, _operations(kernels, copies))
    called = _started_in(steps, launching)
    is_empty = (
        (begun == 0) & (called == 0) & steps["rank"].isin(api_calls["rank"].unique()).to_numpy()
    )
    if is_empty.all() or not is_empty.any():
        return steps.iloc[:0]
    weight = _started_in(steps, ops)
    if not weight[~is_empty].any():
        weight = steps["dur_ns"].to_numpy()
    usual = float(np.median(weight[~is_empty]))
    found: pd.DataFrame = steps[is_empty & (weight >= SIMILAR * usual)]
    return found


def _started_in(steps: pd.DataFrame, events: pd.DataFrame) -> Int:
    """Return how many events of its rank start in each step."""
    count = np.zeros(len(steps), np.int64)
    first, last = ends(steps)
    for rank in steps["rank"].unique():
        times = np.sort(events.loc[events["rank"] == rank, "start_ns"].to_numpy())
        of_rank = (steps["rank"] == rank).to_numpy()
        count[of_rank] = np.searchsorted(times, last[of_rank]) - np.searchsorted(
            times, first[of_rank]
        )
    return count


def queued_before(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame
) -> pd.DataFrame:
    """Return when streams did what was launched before the recording: STRETCHES, not yet `free`.

    The first recorded operation of a stream starts soon after its launch, unless other work lies
    before it in the queue. If it waits for longer than BEYOND_NS, that work was not recorded.
    """
    on_stream = pd.concat([kernels[["stream"]], copies[["stream"]]], ignore_index=True)
    work = _operations(kernels, copies).join(on_stream)
    row = causes.started_by(work, api_calls)
    returned = np.append(ends(api_calls)[1], 0)[row]
    work = work.assign(returned_ns=np.where(row < 0, work["start_ns"], returned))
    first = work.sort_values("start_ns", kind="stable").drop_duplicates(
        ["rank", "gpu", "process", "stream"]
    )
    waited = first["start_ns"] - first["returned_ns"]
    queued = first.assign(start_ns=first["returned_ns"], dur_ns=waited)
    found = free(queued[waited > BEYOND_NS], kernels, copies)
    return found[found["dur_ns"] > BEYOND_NS].reset_index(drop=True)


def open_ends(
    kernels: pd.DataFrame, copies: pd.DataFrame, calls: list[pd.DataFrame], moments: list[pd.Series]
) -> pd.DataFrame:
    """Return what still goes on after the last event of each rank that worked on a GPU.

    A program goes on calling until its functions and ranges end. What outlasts all that begins was
    therefore under way when the rest was lost. `calls` hold rank, start_ns, dur_ns and name of what
    may go on; `moments` hold when anything last began on each rank.

    One row per rank: rank, name (of what ends last), first_ns (of the GPU's work), start_ns (when
    the last event begins, or the GPU's work ends), dur_ns (from then to the end of what goes on).
    """
    work = _operations(kernels, copies)
    end = work["start_ns"] + work["dur_ns"]
    ranks = work["rank"]
    table = pd.DataFrame({"first_ns": work["start_ns"].groupby(ranks).min()})
    worked = end.groupby(ranks).max()
    began = pd.concat([worked, *moments, *(last_starts(of) for of in calls)])
    table["start_ns"] = began.groupby(level=0).max()
    lasting = pd.concat([_last_to_end(of) for of in calls])
    lasting = lasting.sort_values("end_ns", kind="stable").groupby("rank").last()
    table = table.join(lasting, how="inner")
    table["dur_ns"] = table.pop("end_ns") - table["start_ns"]
    return table.reset_index()


def last_starts(events: pd.DataFrame) -> pd.Series:
    """Return when the last event of each rank begins, ns."""
    return events["start_ns"].groupby(events["rank"]).max()


def _last_to_end(calls: pd.DataFrame) -> pd.DataFrame:
    end = calls["start_ns"] + calls["dur_ns"]
    rows = end.groupby(calls["rank"]).idxmax()
    found: pd.DataFrame = calls.loc[rows, ["rank", "name"]].assign(end_ns=end[rows])
    return found.astype({"name": object})


def on_all_gpus(spans: pd.DataFrame, gpus: pd.DataFrame) -> pd.DataFrame:
    """Return spans of ranks (rank, start_ns, dur_ns) on each GPU of the rank: STRETCHES, not yet
    `free`.
    """
    pairs = gpus[["rank", "gpu"]].drop_duplicates()
    return _table(spans[["rank", "start_ns", "dur_ns"]].merge(pairs, on="rank"))


def cut_gaps(gaps: pd.DataFrame, stretches: pd.DataFrame) -> pd.DataFrame:
    """Return GAPS without what of them lies in stretches; what remains of a gap keeps its cause.

    The parts of a gap shrink as the gap does. A gap of which half or more is unknown has no known
    cause: what remains is unattributed.
    """
    index, (of_gap, of_stretch) = devices(gaps, stretches)
    axis = Axis.over(max(len(index), 1), *ends(gaps), *ends(stretches))
    begin, finish = (axis.at(of_gap, times) for times in ends(gaps))
    first, last = (axis.at(of_stretch, times) for times in ends(stretches))
    hidden = union(first, last)
    unknown = causes.covered(hidden, begin, finish)
    touched = np.flatnonzero(unknown)
    if not len(touched):
        return gaps
    pieces = subtract(union(begin[touched], finish[touched]), hidden)
    row = touched[np.searchsorted(begin[touched], pieces.start, side="right") - 1]
    length = pieces.end - pieces.start
    rest = gaps.take(row).assign(
        start_ns=gaps["start_ns"].to_numpy()[row] + pieces.start - begin[row], dur_ns=length
    )
    whole = gaps["dur_ns"].to_numpy()[row]
    is_known = 2 * unknown[row] < whole
    rest = rest.assign(**_shrunk(rest, length, whole, is_known))
    rest.loc[~is_known, "cause"] = "unattributed"
    rest.loc[~is_known, ["detail", "api", "range"]] = None
    untouched = np.delete(np.arange(len(gaps)), touched)
    return GAPS.make(pd.concat([gaps.take(untouched), rest], ignore_index=True))


def _shrunk(rest: pd.DataFrame, length: Int, whole: Int, is_known: Bool) -> dict[str, Int]:
    """Return the parts of the pieces of gaps, in proportion; the largest takes what rounding leaves."""
    parts = rest[[*causes.PARTS]].to_numpy()
    scaled = (parts * (length / whole)[:, None]).astype(np.int64) * is_known[:, None]
    has_parts = parts.any(axis=1) & is_known
    largest = parts.argmax(axis=1)
    scaled[np.arange(len(rest)), largest] += np.where(has_parts, length - scaled.sum(axis=1), 0)
    return dict(zip(causes.PARTS, scaled.T, strict=True))


def collecting(overhead: pd.DataFrame, kernels: pd.DataFrame, copies: pd.DataFrame) -> pd.DataFrame:
    """Return when the collector itself worked (OVERHEAD), on each GPU that its process uses: STRETCHES.

    They are not yet `free`.
    """
    own = OVERHEAD.check(overhead)
    own = own[own["kind"].isin(OF_COLLECTOR)]
    used = _operations(kernels, copies)[["rank", "process", "gpu"]].drop_duplicates()
    return _table(own[[*PROCESS, "start_ns", "dur_ns"]].merge(used, on=PROCESS))


def free(stretches: pd.DataFrame, kernels: pd.DataFrame, copies: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of stretches in which no operation was recorded on the device: disjoint
    STRETCHES.
    """
    frames = [stretches, kernels, copies]
    index, (group, *of_work) = devices(*frames)
    work = [ends(frame) for frame in frames[1:]]
    start, end = (np.concatenate(times) for times in zip(*work, strict=True))
    busy = union(start, end, np.concatenate(of_work))
    return _placed(subtract(union(*ends(stretches), group), busy), index)


def within(stretches: pd.DataFrame, spans: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of stretches inside the span (start_ns, span_ns) of each device: disjoint
    STRETCHES.
    """
    of_spans = spans[["rank", "gpu", "start_ns"]].assign(dur_ns=spans["span_ns"])
    index, (group, of_span) = devices(stretches, of_spans)
    inside = intersect(union(*ends(stretches), group), union(*ends(of_spans), of_span))
    return _placed(inside, index)


def length_ns(stretches: pd.DataFrame) -> int:
    """Return how long stretches are together, of all devices, ns; what several cover counts once."""
    index, (group,) = devices(stretches)
    return int(total(union(*ends(stretches), group), len(index)).sum())


def _placed(found: tuple[Int, Int, Int], index: pd.DataFrame) -> pd.DataFrame:
    start, end, group = found
    return _table(index.take(group).assign(start_ns=start, dur_ns=end - start))


def _table(stretches: pd.DataFrame) -> pd.DataFrame:
    return STRETCHES.make(stretches[STRETCHES.column_names])
